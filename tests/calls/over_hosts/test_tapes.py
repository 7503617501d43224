"""The tapes of all ranks of a call over hosts do together what the collective promises, at any timing."""

from collections import defaultdict
from random import Random

import pytest

from tests.conftest import NIGHTLY
from tests.support.abstract_run import AbstractRun, Fault
from tests.support.tapes import Call, everywhere, rows_without, tapes_of
from unisono.engine import tape
from unisono.hosts.messages import message_memory
from unisono.schedule import Hosts
from unisono.schedule.algorithms.over_hosts import CORES, spanning

SHAPES = ("2x1", "2x2", "3x1", "3x2", "1+2", "2+1+3", "4x1", "2x3")
KINDS = {
    getattr(tape, name): name for name in ("COPY", "COMBINE", "POST", "SEND", "TAKE", "LEFT", "RUN", "MEET", "LEAVE")
}


def calls(collective: str, random: Random) -> Call:
    hosts = Hosts.parse(random.choice(SHAPES))
    reduces = collective in ("all_reduce", "reduce", "reduce_scatter")
    rails = random.randint(1, hosts.rails) if reduces or collective in ("broadcast", "all_gather") else None
    table = spanning(
        collective, hosts, random.randrange(hosts.ranks) if collective in ROOTED else 0,
        rails=rails, core=random.choice(CORES[collective]),
    )  # fmt: skip
    op = random.choice(["sum", "avg"]) if reduces else "sum"
    return Call(
        table, random.choice([1, 7, 24, 65]), random.randint(1, 4), op, random.random() < 0.5, random.random() < 0.7
    )


ROOTED = ("broadcast", "reduce", "scatter", "gather")


@pytest.fixture(params=[8, 64, 1 << 20], ids=["straight", "some straight", "packed"])
def long_from(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_memory, "LARGE_BYTES", request.param)


@pytest.mark.usefixtures("long_from")
@pytest.mark.parametrize("collective", sorted(CORES))
def test_calls_keep_their_promises(collective: str) -> None:
    random = Random(collective)
    for _ in range(120 if NIGHTLY else 12):
        call = calls(collective, random)
        tapes = tapes_of(call)
        try:
            AbstractRun(call, tapes, random).run()
        except Fault as fault:
            raise AssertionError(f"{call}: {fault}") from fault


def test_a_tape_without_a_row_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows are not needed on some ranks: each message to a rank tells of others, and so does each program."""
    monkeypatch.setattr(message_memory, "LARGE_BYTES", 64)
    found, missed = defaultdict(int), defaultdict(int)
    for shape, pieces, op in (("2x2", 1, "sum"), ("2x2", 2, "avg"), ("3+1", 2, "sum")):
        hosts = Hosts.parse(shape)
        call = Call(spanning("all_reduce", hosts, rails=1), 40, pieces, op)
        tapes = tapes_of(call)
        for rank, at, row in everywhere(tapes):
            changed = [rows_without(one, at) if one.rank == rank else one for one in tapes]
            try:
                for seed in range(3):
                    AbstractRun(call, changed, Random(seed)).run()
            except Fault:
                found[KINDS[row.kind]] += 1
            else:
                missed[KINDS[row.kind]] += 1
    assert set(found) == set(KINDS.values()), (found, missed)
    assert not {*missed} - {"MEET", "LEFT"}, (found, missed)
