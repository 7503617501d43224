"""The kernels of all ranks of several hosts, in one process: an arena for each host, and messages in any order."""

import ctypes
from collections.abc import Iterator
from itertools import cycle
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.in_process_carrier import InProcessCarrier, Wires
from tests.support.matrix import REDUCING, Case
from tests.support.matrix_driver import inputs
from tests.support.matrix_driver import wanted as expected
from unisono.base.config import Config
from unisono.base.records import CallRecord
from unisono.calls.dispatch.over_hosts.relay import Relay
from unisono.engine.compile import plan as plans
from unisono.engine.compile.plan import Blocks
from unisono.engine.compile.program import DONE, FAR_HALF, LOST, WAITING, Lowering, PlanWord, StateWord
from unisono.engine.memory.arena import Arena
from unisono.engine.rank import RankEngine
from unisono.schedule import Hosts, pipeline
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import CORES, spanning

_CONFIG = Config(look_up_s=1e-6, spins=0, heap_bytes=1 << 22)
_TURNS = 20_000
NOTHING = torch.empty(0, dtype=torch.int64)
Data = list[torch.Tensor]


class Rehearsal:
    """Ranks of a group over hosts, each with its relay."""

    def __init__(self, shape: str, seed: int) -> None:
        self.random, self.hosts = Random(seed), Hosts.parse(shape)
        self.ranks = range(self.hosts.ranks)
        self.wires = Wires(self.random)
        self.arenas = [Arena.create(self.hosts.ranks, _CONFIG, spans=True) for _ in self.hosts.members]
        self.carriers = [InProcessCarrier(self.wires, rank) for rank in self.ranks]
        self.engines = [RankEngine(self.arenas[self.hosts.host_of(rank)], rank, _CONFIG) for rank in self.ranks]
        self.spans: list[Any] = [
            SimpleNamespace(
                carrier=self.carriers[rank], here=self.hosts.beside(rank), call=None, late=[],
                must_look=lambda: False, still_late=list,
                news=ctypes.c_int64(), seen=ctypes.c_int64(),
            )
            for rank in self.ranks
        ]  # fmt: skip
        how: Any = {"size": len(self.ranks), "world_ranks": tuple(self.ranks)}
        groups: Any = [SimpleNamespace(engine=engine, rank=rank, **how) for rank, engine in enumerate(self.engines)]
        self.relays = [*map(Relay, groups, self.spans)]

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
            assert plan.program.slots * plan.words[PlanWord.SLOT_BYTES] < FAR_HALF
        return made

    def turn(self, rank: int, made: list[plans.Plan], given: Data, out: Data) -> int:
        return self.relays[rank].run(made[rank].address, given[rank].data_ptr(), out[rank].data_ptr(), 0)

    def run(self, made: list[plans.Plan], given: Data, out: Data) -> None:
        """Make a call: the ranks have their turns in any order."""
        waiting = list(self.ranks)
        for _ in range(_TURNS):
            status = self.turn(rank := self.random.choice(waiting), made, given, out)
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


def data(kind: str, p: int, n: int, seed: int) -> tuple[Data, Data]:
    """What ranks give, and what they should get."""
    case = Case(kind, "int64", "sum" if kind in REDUCING else "-", n, seed=seed)
    given, wanted = ([torch.cat([NOTHING, *parts]) for parts in of(case, p)] for of in (inputs, expected))
    return given, [want if kind != "reduce" or not rank else NOTHING for rank, want in enumerate(wanted)]


@pytest.mark.parametrize("kind", [*(kind for kind in CORES if kind != "barrier"), "all_to_all"])
def test_calls_follow_each_other_in_any_order(ranks: Rehearsal, kind: str) -> None:
    p, random = len(ranks.ranks), ranks.random
    for n, pieces in ((3, 1), (1900, 1), (5000, 2), (1, 1)):
        for core in CORES.get(kind, ("direct", "pairwise"))[:2]:
            made = ranks.make(kind, core, n, pieces)
            for _ in range(2):
                given, wanted = data(kind, p, n, random.randrange(1 << 30))
                out = [torch.full((len(want) + 1,), -1) for want in wanted]
                ranks.run(made, given, out)
                for rank in range(p):
                    right = out[rank].tolist() == [*wanted[rank].tolist(), -1]
                    assert right, f"{made[0].record} of {n}, rank {rank}"
    assert not any(carrier.requests for carrier in ranks.carriers), "a call has ended before its messages"
    assert not ranks.wires.unmet
    assert not any(engine.words[StateWord.SENDING] for engine in ranks.engines)


@pytest.mark.parametrize("fails", ["begin", "later"])
def test_a_lost_message_ends_the_call(ranks: Rehearsal, fails: str) -> None:
    made = ranks.make("all_reduce", "ring", 500, 1)
    given, out = data("all_reduce", len(ranks.ranks), 500, 1)
    ranks.carriers[0].fails = fails
    for rank in cycle(ranks.ranks):
        if ranks.turn(rank, made, given, out) & 0xFF == LOST:
            break
        ranks.wires.move()
    assert rank == 0
    assert ranks.relays[0].failure is not None
    ranks.relays[0].drop()
    assert ranks.spans[0].call is None
    assert not ranks.carriers[0].requests


def test_messages_of_refused_calls_are_dropped() -> None:
    """Rank 0 has sent its message by then."""
    for seed in range(20):
        ranks = Rehearsal("2x1", seed)
        made, (given, out) = ranks.make("broadcast", "linear", 3, 1), data("broadcast", 2, 3, seed)
        ranks.turn(0, made, given, out)
        ranks.relays[0].drop()
        ranks.engines[0].skip_call()
        ranks.engines[1].refuse_call()
        assert ranks.wires.unmet
        given, wanted = data("broadcast", 2, 3, seed + 100)
        ranks.run(made, given, out)
        assert torch.equal(out[1], wanted[1])
        ranks.close()


def test_lost_message_delays_no_end_of_a_call() -> None:
    """Rank 0 sends to two hosts, and its first message is lost after it has begun."""
    for seed in range(20):
        ranks = Rehearsal("3x1", seed)
        made, (given, out) = ranks.make("broadcast", "linear", 3, 1), data("broadcast", 3, 3, seed)
        ranks.carriers[0].fails, status = "later", WAITING
        while status & 0xFF != DONE:
            for rank in (1, 2, 0):
                status = ranks.turn(rank, made, given, out)
            ranks.wires.move()
        assert not ranks.carriers[0].requests
        ranks.close()
