"""Random programs of fixed seeds. `python -m tests.fuzz programs` runs others."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import unisono
from tests.fuzz.draw import Session
from tests.fuzz.programs import Call, Late, Program
from tests.fuzz.worlds import Worlds
from tests.support.matrix import Case
from tests.support.waiting import until


@pytest.fixture(scope="module")
def live() -> Iterator[Worlds]:
    with Worlds() as worlds:
        yield worlds


def expect_right(live: Worlds, program: Program) -> None:
    wrong = live.run(program)
    assert not wrong, "\n".join([*wrong, str(program)])


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("ranks", ["1", "2", "3", "4"])
def test_collectives(live: Worlds, ranks: str) -> None:
    """Of every call, dtype, op, layout and form of blocks."""
    session = Session(f"calls {ranks}", (ranks,), 1 << 20, ("unisono",))
    for _ in range(5):
        expect_right(live, replace(session.calls(75), settings=()))


@pytest.mark.sampled
@pytest.mark.parametrize("hosts", ["1", "2", "3", "5", "2x1", "2+1"])
@pytest.mark.parametrize("seed", [1, 2])
def test_programs(live: Worlds, hosts: str, seed: int) -> None:
    session = Session(f"{hosts} {seed}", (hosts,), 1 << 20)
    for _ in range(8):
        expect_right(live, session.program())


@pytest.mark.parametrize(("hosts", "calls", "longest_s"), [("2", 48, 1.5), ("4", 40, 1.2), ("2x1", 16, 1.2)])
def test_mistakes(live: Worlds, hosts: str, calls: int, longest_s: float) -> None:
    expect_right(live, Session(hosts, (hosts,), apis=("unisono",)).mistakes(calls, longest_s))


@pytest.mark.parametrize("hosts", ["3", "3x1", "2+1"])
def test_late_rank_after_two_mismatches(live: Worlds, hosts: str) -> None:
    """Its call is like the third one of the others, and must not be combined with that."""
    calls = [Call(Case("all_reduce", "float32", "sum", 4, seed=seed, exact=True)) for seed in range(3)]
    wrong = [Call(call.case, mistakes=((0, "barrier"),)) for call in calls[:2]]
    expect_right(live, Program(hosts, (Late(2, 1.3), *wrong, calls[2])))


@pytest.mark.ranks(3)
def test_refusing_rank_waits_for_none(tmp_path: Path) -> None:
    """Rank 2 makes the first of five calls that rank 0 refuses after this has refused all of them."""
    me = unisono.get_rank()
    until(lambda: me != 2 or (tmp_path / "refused").exists())
    for step in range(5):
        with pytest.raises(unisono.MismatchError if me else ValueError, match="bogus"):
            unisono.all_reduce(torch.ones(3), "sum" if me else f"bogus{step}")
    if me == 0:
        (tmp_path / "refused").touch()
    unisono.barrier()
