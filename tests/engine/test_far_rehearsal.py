"""The kernels of all ranks of several hosts, in one process: an arena for each host, and messages in any order."""

import ctypes
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.in_process_carrier import InProcessCarrier, Wires
from unisono.base.config import Config
from unisono.base.records import CallRecord
from unisono.calls.dispatch.over_hosts.relay import Relay
from unisono.engine.compile import plan as plans
from unisono.engine.compile.plan import Blocks
from unisono.engine.compile.program import DONE, LOST, WAITING, Lowering, PlanWord, StateWord
from unisono.engine.memory.arena import Arena
from unisono.engine.rank import RankEngine
from unisono.schedule import Hosts, pipeline
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import CORES, spanning

_CONFIG = Config(look_up_s=1e-6, spins=0, heap_bytes=1 << 22)
_TURNS = 20_000
Data = list[np.ndarray[Any, np.dtype[np.int64]]]


class Rehearsal:
    """Ranks of a group over hosts, each with its relay."""

    def __init__(self, shape: str, seed: int) -> None:
        self.random, self.hosts = Random(seed), Hosts.parse(shape)
        self.ranks = range(self.hosts.ranks)
        self.wires = Wires(self.random)
        self.arenas = [Arena.create(self.hosts.ranks, _CONFIG, spans=True) for _ in self.hosts.members]
        self.carriers = [InProcessCarrier(self.wires, rank) for rank in self.ranks]
        self.engines = [RankEngine(self.arenas[self.hosts.host_of(rank)], rank, _CONFIG) for rank in self.ranks]
        self.spans = [
            SimpleNamespace(
                carrier=self.carriers[rank], here=self.hosts.beside(rank), call=None, late=[],
                must_look=lambda: False, still_late=list,
                news=ctypes.c_int64(), seen=ctypes.c_int64(),
            )
            for rank in self.ranks
        ]  # fmt: skip
        self.relays = []
        for rank, engine in enumerate(self.engines):
            group: Any = SimpleNamespace(engine=engine, rank=rank, size=len(self.ranks), world_ranks=tuple(self.ranks))
            span: Any = self.spans[rank]
            self.relays.append(Relay(group, span))

    def close(self) -> None:
        for arena in self.arenas:
            arena.close()

    def make(self, kind: str, core: str, n: int, pieces: int) -> list[plans.Plan]:
        if kind in CORES:
            table = spanning(kind, self.hosts, core=core, segments=2)
        else:
            table = CATALOGUE[f"{kind}.{core}"].schedule(self.hosts.ranks).replace(hosts=self.hosts)
        table = pipeline(table, pieces) if pieces > 1 else table
        op = "sum" if kind in ("all_reduce", "reduce", "reduce_scatter") else None
        made = [
            engine.plan(table, Lowering(), CallRecord(kind), "int64", Blocks(n, 8), op or ("bor" if n == 1 else None))
            for engine in self.engines
        ]
        for plan in made:
            plan.words[PlanWord.TAGS] = plan.signature
        return made

    def run(self, made: list[plans.Plan], given: Data, out: Data) -> None:
        """Make a call: the ranks have their turns in any order."""
        waiting = list(self.ranks)
        for _ in range(_TURNS):
            rank = self.random.choice(waiting)
            where = (made[rank].address, given[rank].ctypes.data, out[rank].ctypes.data, 0)
            status = self.relays[rank].run(*where)
            assert status & 0xFF in (DONE, WAITING), (rank, status)
            if status == DONE:
                waiting.remove(rank)
            if not waiting:
                return
            if self.random.random() < 0.5:
                self.wires.move()
        raise AssertionError(f"ranks {waiting} do not end")


@pytest.fixture(params=["2x1", "2x2", "3+1"])
def ranks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rehearsal]:
    monkeypatch.setattr(plans, "FAR_HALF", 1 << 14)
    made = Rehearsal(request.param, seed=7)
    yield made
    made.close()


def data(kind: str, p: int, n: int, random: Random) -> tuple[Data, Data]:
    """What ranks give, and what they get; None where a rank gets nothing."""
    draw = np.random.default_rng(random.randrange(1 << 30))
    wide = kind in ("reduce_scatter", "all_to_all", "scatter")
    given = [draw.integers(0, 1000, n * (p if wide else 1)) for _ in range(p)]
    blocks = [each.reshape(p, n) if wide else each for each in given]
    total = np.sum(given, axis=0)
    match kind:
        case "all_reduce":
            return given, [total] * p
        case "reduce":
            return given, [total, *[total[:0]] * (p - 1)]
        case "broadcast":
            return given, [given[0]] * p
        case "all_gather":
            return given, [np.concatenate(given)] * p
        case "gather":
            return given, [np.concatenate(given), *[total[:0]] * (p - 1)]
        case "scatter":
            return given, [blocks[0][rank] for rank in range(p)]
        case "reduce_scatter":
            return given, [total.reshape(p, n)[rank] for rank in range(p)]
    return given, [np.concatenate([each[rank] for each in blocks]) for rank in range(p)]


@pytest.mark.parametrize("kind", [*(kind for kind in CORES if kind != "barrier"), "all_to_all"])
def test_calls_follow_each_other_in_any_order(ranks: Rehearsal, kind: str) -> None:
    p, random = len(ranks.ranks), ranks.random
    for n, pieces in ((3, 1), (2000, 1), (5000, 2), (1, 1)):
        for core in CORES.get(kind, ("direct", "pairwise"))[:2]:
            made = ranks.make(kind, core, n, pieces)
            for _ in range(2):
                given, wanted = data(kind, p, n, random)
                out = [np.full(max(1, len(want)), -1, np.int64) for want in wanted]
                ranks.run(made, given, out)
                for rank in range(p):
                    right = np.array_equal(out[rank][: len(wanted[rank])], wanted[rank])
                    assert right, f"{made[0].record} of {n}, rank {rank}"
    assert not any(carrier.requests for carrier in ranks.carriers), "a call has ended before its messages"
    assert not ranks.wires.unmet
    assert not any(engine.words[StateWord.SENDING] for engine in ranks.engines)


@pytest.mark.parametrize("fails", ["begin", "later"])
def test_a_lost_message_ends_the_call(ranks: Rehearsal, fails: str) -> None:
    made, (given, wanted) = (
        ranks.make("all_reduce", "ring", 500, 1),
        data("all_reduce", len(ranks.ranks), 500, Random(1)),
    )
    out = [np.zeros(len(want), np.int64) for want in wanted]
    ranks.carriers[0].fails = fails
    seen = set()
    for _ in range(2000):
        for rank in ranks.ranks:
            status = ranks.relays[rank].run(made[rank].address, given[rank].ctypes.data, out[rank].ctypes.data, 0)
            if status & 0xFF == LOST:
                seen.add(rank)
                break
        ranks.wires.move()
        if seen:
            break
    assert seen == {0}
    assert ranks.relays[0].failure is not None
    ranks.relays[0].drop()
    assert ranks.spans[0].call is None
    assert not ranks.carriers[0].requests


def test_messages_of_refused_calls_are_dropped() -> None:
    """Rank 0 has sent its message by then."""
    for seed in range(20):
        ranks = Rehearsal("2x1", seed)
        made, (given, _) = ranks.make("broadcast", "linear", 3, 1), data("broadcast", 2, 3, Random(seed))
        out = [np.zeros(3, np.int64) for _ in ranks.ranks]
        ranks.relays[0].run(made[0].address, given[0].ctypes.data, out[0].ctypes.data, 0)
        ranks.relays[0].drop()
        ranks.engines[0].skip_call()
        ranks.engines[1].refuse_call()
        assert ranks.wires.unmet
        given, wanted = data("broadcast", 2, 3, ranks.random)
        ranks.run(made, given, out)
        assert np.array_equal(out[1], wanted[1])
        ranks.close()


def test_lost_message_delays_no_end_of_a_call() -> None:
    """Rank 0 sends to two hosts, and its first message is lost after it has begun."""
    for seed in range(20):
        ranks = Rehearsal("3x1", seed)
        made, (given, wanted) = ranks.make("broadcast", "linear", 3, 1), data("broadcast", 3, 3, Random(seed))
        out = [np.zeros(len(want), np.int64) for want in wanted]
        ranks.carriers[0].fails, status = "later", WAITING
        while status & 0xFF != DONE:
            for rank in (1, 2, 0):
                status = ranks.relays[rank].run(made[rank].address, given[rank].ctypes.data, out[rank].ctypes.data, 0)
            ranks.wires.move()
        assert not ranks.carriers[0].requests
        ranks.close()
