"""`rehearse` runs all ranks of a call in turn, in one process: one of them dies or is late at a row of its program.

The kernel is the one that runs calls. A rank waits here until another rank has had its turn. So a test can try every
fault at every row, in a millisecond each. A fault happens in the same way each time.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unisono.base.config import Config
from unisono.base.records import CallRecord, Departure, DepartureKind, GivenUp
from unisono.engine.compile.plan import Blocks, Plan
from unisono.engine.compile.program import DONE, Lowering, StateWord
from unisono.engine.memory.arena import Arena
from unisono.engine.rank import RankEngine
from unisono.ranks.failures.verdict import Gone, PeerView, Situation, judge
from unisono.schedule import BLOCKED, Schedule
from unisono.schedule.contract import contract
from unisono.tools.testing.chaos import stop_at_row


def lowerings(schedule: Schedule) -> Iterator[Lowering]:
    """Every lowering that a schedule can have: staged or zero copy, and in place or not."""
    for zero_copy in (False, True):
        yield Lowering(zero_copy, in_place=False)
        if schedule.collective not in BLOCKED:
            yield Lowering(zero_copy, in_place=True)


_ELEMENTS = 16
"""The elements of a chunk: a pair of cache lines of int64, so that all chunks have one length, as in the table."""
_TURNS = 3  # after this number of turns of all ranks without progress, no rank will ever go on
_CONFIG = Config(look_up_s=1e-6, spins=0, heap_bytes=1 << 22, segment_bytes=1 << 16)
_DIED = Departure(DepartureKind.DIED, "died")


def rows_of(schedule: Schedule, rank: int, lowering: Lowering) -> int:
    """The number of rows of a rank's program."""
    with closing(_Rehearsal(schedule, lowering)) as rehearsal:
        return len(rehearsal.plans[rank].kept[0])


def rehearse(schedule: Schedule, lowering: Lowering, *, kill: int | None = None, delay: int = 0, row: int) -> list[str]:
    """Make one call of a table in this process, and let a rank fail before a row of its program.

    kill: this rank dies there.
    delay: this rank, where none dies, goes on when all others have come as far as they can.

    Returns how the call ends on each rank: "done", with the right result; "died"; or "told", if the rank learns that
    `kill` has died. Raises AssertionError if a rank ends with a wrong result, or would wait for ever.
    """
    with closing(_Rehearsal(schedule, lowering)) as rehearsal:
        return rehearsal.run(delay if kill is None else kill, row, dies=kill is not None)


class _Rehearsal:
    def __init__(self, schedule: Schedule, lowering: Lowering) -> None:
        self._schedule = schedule
        self._arena = Arena.create(schedule.ranks, _CONFIG)
        ranks = range(schedule.ranks)
        self._engines = [RankEngine(self._arena, rank, _CONFIG) for rank in ranks]
        held, is_barrier = contract(schedule), schedule.collective == "barrier"
        values = _who_came if is_barrier else _sums
        self._inputs, self._expected = (
            [values([slots[slot] for slot in sorted(slots) if slot[0] == rank]) for rank in ranks]
            for slots in (held.before, held.after)
        )
        length = max(map(len, [*self._inputs, *self._expected])) // held.blocks
        self._outputs: list[npt.NDArray[np.int64]] = []
        self._given: list[npt.NDArray[np.int64]] = []
        for rank, engine in enumerate(self._engines):
            given, wanted = self._inputs[rank], self._expected[rank]
            size = max(len(given), len(wanted), 1)
            room = (
                engine.heap.flat(2 * size, torch.int64).numpy() if lowering.zero_copy else np.zeros(2 * size, np.int64)
            )
            room[:] = -1
            room[: len(given)] = given
            self._given.append(room[: len(given)])
            self._outputs.append(room[: len(wanted)] if lowering.in_place else room[size : size + len(wanted)])
        record, blocks = CallRecord(schedule.collective), Blocks(length, 8)
        op = "bor" if is_barrier else "sum"
        self.plans: list[Plan] = [
            engine.plan(schedule, lowering, record, "int64", blocks, op) for engine in self._engines
        ]

    def close(self) -> None:
        """Release the shared memory."""
        self._arena.close()

    def run(self, victim: int, row: int, *, dies: bool) -> list[str]:
        """Let a rank stop before a row, then die or go on. Returns how the call ends on each rank."""
        ends, stopping = [""] * len(self._engines), stop_at_row(self.plans[victim], row)
        self._go_on(ends, {victim: stopping})
        if dies:
            ends[victim] = "died"
            self._tell(ends, victim)
        else:
            self._go_on(ends, {})
        for rank, end in enumerate(ends):
            right = end != "done" or np.array_equal(self._outputs[rank], self._expected[rank])
            assert right, f"{self._schedule.name}: rank {rank} ends with a wrong result"
            assert end, f"{self._schedule.name}: rank {rank} would wait for ever"
        return ends

    def _go_on(self, ends: list[str], instead: Mapping[int, Plan]) -> None:
        """Let all ranks run in turn until no rank can go on. instead: rank -> a plan to run in place of its own."""
        still = 0
        while still < _TURNS:
            still += 1
            for rank, engine in enumerate(self._engines):
                if ends[rank]:
                    continue
                before = self._place(engine)
                status = self._turn(rank, instead.get(rank, self.plans[rank]))
                if status == DONE:
                    ends[rank] = "done"
                if status == DONE or self._place(engine) != before:
                    still = 0

    def _tell(self, ends: list[str], dead: int) -> None:
        """Let ranks that wait look at the others, as `watch` does, until no rank learns more."""
        learns = True
        while learns:
            learns = False
            for rank, engine in enumerate(self._engines):
                if ends[rank] or not isinstance(verdict := self._judge(rank, dead), Gone) or verdict.rank != dead:
                    continue
                ends[rank], learns = "told", True
                self._arena.board(rank).set_gave_up(GivenUp(engine.call_number, False, frozenset({dead}), "died"))
                engine.sign_off(inline=self.plans[rank].inline)

    def _judge(self, rank: int, dead: int) -> Any:
        engine, plan = self._engines[rank], self.plans[rank]
        status, number = self._turn(rank, plan), engine.call_number
        me = Situation(
            number, plan.signature, status >> 8 & 0xFFFF, engine.at_gate(plan.program.gate_row), overdue=False
        )
        peers = [
            PeerView(
                other, engine.entered(other), engine.signature(other, number), _DIED if other == dead else None,
                self._arena.board(other).gave_up,
            )
            for other in range(len(self._engines))
            if other != rank
        ]  # fmt: skip
        return judge(me, peers)

    def _place(self, engine: RankEngine) -> tuple[int, int, int]:
        return engine.words[StateWord.SEGMENT], engine.words[StateWord.PC], engine.words[StateWord.OFFSET]

    def _turn(self, rank: int, plan: Plan) -> int:
        given, output = (
            vector.ctypes.data if len(vector) else 0 for vector in (self._given[rank], self._outputs[rank])
        )
        return self._engines[rank].run(plan.address, given, output, self._engines[rank].state)


def _sums(held: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """Sums of the ranks' contributions: rank r gives 2^r times a number that no other element has."""
    parts = [ranks * ((1 + chunk) * 1000 + np.arange(_ELEMENTS)) for chunk, ranks in held]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _who_came(held: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """The ranks that have come to a barrier, as bits; messages may tell of a rank several times."""
    return np.repeat(np.array([ranks for _, ranks in held], np.int64), _ELEMENTS)
