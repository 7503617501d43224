"""The ranks of one host: this rank's private state, its programs and plans, and the call into the kernel."""

from __future__ import annotations

import ctypes
import os
import sys
import time
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from ..config import Config
from ..schedule.proof import prove
from ..schedule.table import Schedule
from . import interpret
from .arena import Arena
from .bind import Plan, bind
from .compiled import entry_point, on_disk
from .heap import Heap
from .layout import LINE
from .plan import compile_schedule
from .plan_proof import prove_programs
from .program import STEP_BITS, Lowering, Program, StateWord
from .reducers import CustomOp, combine_address
from .sub_arena import Lender, SubArena
from .waiting import slow_yield_cycles, time_yield

__all__ = ["Host", "kernel", "warm_up"]

_LINE_WORDS = LINE // 8
_NUMBER = 0xFFFFFFFF
_SIGNED_OFF = 0
"""A signature that no call has: this rank has given the call up."""

_kernel: Callable[[int, int, int, int], int] | None = None

_programs: dict[tuple[int, int], dict[tuple[int, Lowering], tuple[Schedule, Program]]] = {}
"""The programs of this process, by (size, rank) of the group: groups that are alike share them."""


def kernel() -> Callable[[int, int, int, int], int]:
    """The compiled interpreter: run(plan, input, output, state), all addresses. Compiled once per installation."""
    global _kernel  # noqa: PLW0603  one compiled function per process
    if _kernel is None:
        started = time.monotonic()
        said = not on_disk(interpret.run)
        if said:
            print("unisono: compiling its kernel, once per installation ...", end=" ", file=sys.stderr, flush=True)  # noqa: T201
        _kernel = entry_point(interpret.run)
        entry_point(time_yield)
        if said:
            print(f"{time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)  # noqa: T201
    return _kernel


def warm_up() -> None:
    """Compile, or load, all that a first call needs."""
    kernel()
    for dtype in ("float32", "bfloat16"):
        for last in (False, True):
            combine_address(dtype, "avg", last)


class Host:
    """One rank's part of a group whose ranks share an arena."""

    def __init__(self, arena: Arena | SubArena, rank: int, config: Config) -> None:
        self.arena, self.rank, self.size, self.config = arena, rank, arena.size, config
        self.run = kernel()
        self._mapping = arena.map  # the addresses below are good as long as this lives
        if isinstance(arena, Arena):
            self.heap = Heap(arena, rank)
            self.lender = Lender(arena, self.heap)
            arena.reserve_staging(rank)
        else:
            self.heap, self.lender = arena.lender.heap, arena.lender
        self.heap_first, self.heap_end = arena.heap(rank), arena.heap(rank) + arena.heap_bytes
        self._scratch = np.zeros(interpret.BLOCK + 64, np.uint8)
        self._addresses = np.zeros(8 * self.size + 16, np.int64)
        self._addresses[3 * self.size : 4 * self.size] = [arena.heap(q) for q in range(self.size)]
        self._state = state = np.zeros(StateWord.WORDS, np.int64)
        self.state = state.ctypes.data
        processors = len(os.sched_getaffinity(0))
        state[StateWord.PC] = -1
        state[StateWord.CALL] = 1
        state[StateWord.RANKS], state[StateWord.ME] = self.size, rank
        state[StateWord.CONTROL], state[StateWord.STAGING] = arena.control(0), arena.stage(0)
        state[StateWord.STAGE_STRIDE], state[StateWord.HALF] = arena.stage_stride, arena.half
        state[StateWord.SPINS] = state[StateWord.SPIN_NOW] = config.spins if arena.neighbours <= processors else 0
        state[StateWord.QUICK] = slow_yield_cycles()
        state[StateWord.LOOK_UP_NS] = int(config.look_up_s * 1e9)
        state[StateWord.SCRATCH] = (self._scratch.ctypes.data + 63) & -64
        state[StateWord.ADDRESSES] = self._addresses.ctypes.data
        self._lines = [_words(arena.control(q), _LINE_WORDS) for q in range(self.size)]
        self._tags = [[_words(arena.stage(q) + h * arena.half, 1) for h in (0, 1)] for q in range(self.size)]
        self._programs = _programs.setdefault((self.size, rank), {})
        arena.board(rank).pid = os.getpid()

    def program(self, schedule: Schedule, lowering: Lowering) -> Program:
        """This rank's program for a schedule: the table is proved, compiled, and the result proved, once."""
        key = (id(schedule), lowering)
        if key not in self._programs:
            prove(schedule)
            programs = compile_schedule(schedule, lowering)
            prove_programs(schedule, programs, lowering)
            self._programs[key] = (schedule, programs[self.rank])
        return self._programs[key][1]

    def plan(
        self,
        schedule: Schedule,
        lowering: Lowering,
        *,
        call: str,
        count: int,
        item: int,
        combine: tuple[str, str | CustomOp] | None = None,
        lists: tuple[bool, bool] = (False, False),
        extents: Sequence[int] | None = None,
    ) -> Plan:
        """Bind a schedule to blocks of `count` elements of `item` bytes.

        call: the call in words; ranks whose words, schedule or lowering differ do not run together. combine: (dtype,
        op) where elements are combined. lists: whether input and output are tables of block addresses, not tensors.
        extents: the elements of each block (all_to_all: of each pair of ranks), where they differ; `count` is the most.
        """
        program = self.program(schedule, lowering)
        details = f"{schedule.name}, {lowering}"
        # Whether a rank passes lists or one tensor is its own affair, and not part of the agreement.
        table = f"{schedule.root}|{zlib.crc32(schedule.rows.tobytes())}"
        agreed = f"{call}|{details}|{table}|{count}|{item}|{self.config.segment_bytes}|{self.config.tag_bytes}"
        if extents is not None:
            agreed += f"|{zlib.crc32(np.asarray(extents, np.int64).tobytes())}"
        kernels = (0, 0)
        if combine:
            kernels = (combine_address(*combine, last=False), combine_address(*combine, last=True))
        return bind(
            program,
            count=count,
            item=item,
            combine=kernels,
            half=self.arena.half,
            segment_bytes=self.config.segment_bytes,
            tag_bytes=self.config.tag_bytes,
            signature=max(1, zlib.crc32(agreed.encode()) & 0x7FFFFFFF),
            call=call,
            details=details,
            shared=lowering.zero_copy,
            lists=lists,
            extents=None if extents is None else np.asarray(extents, np.int64),
        )

    # What the slow paths look at: see interpret for the words of a control line.
    @property
    def call_number(self) -> int:
        """The number of this rank's next (or current) call."""
        return int(self._state[StateWord.CALL])

    @property
    def unfinished(self) -> bool:
        """Has the kernel come back in the middle of a call?"""
        return int(self._state[StateWord.PC]) >= 0 or int(self._state[StateWord.OFFSET]) > 0

    def at_gate(self, plan: Plan) -> bool:
        """Is this rank still waiting for its peers to agree on the call?"""
        return int(self._state[StateWord.OFFSET]) == 0 and int(self._state[StateWord.PC]) <= plan.gate_row

    def all_have_ended(self) -> bool:
        """Have all ranks ended the call before this rank's next one?"""
        segment = int(self._state[StateWord.SEGMENT])
        return all(int(line[0]) >= segment << STEP_BITS for q, line in enumerate(self._lines) if q != self.rank)

    def entered(self, rank: int) -> int:
        """The number of the latest call that a rank has entered; 0 before its first."""
        return max(word & _NUMBER for word in self._entries(rank))

    def signature(self, rank: int, number: int) -> int:
        """The signature with which a rank entered the call of this number; 0: it has not, or it has withdrawn it.

        A peer can be one call ahead of this rank, but not two, so its word for this rank's call is still there.
        """
        return next((word >> 32 for word in self._entries(rank) if word & _NUMBER == number), 0)

    def _entries(self, rank: int) -> list[int]:
        """The latest words (signature << 32 | number) with which a rank has entered calls."""
        line = self._lines[rank]
        return [int(line[1]), int(line[2]), *(int(tag[0]) for tag in self._tags[rank])]

    def skip_call(self) -> None:
        """Leave a call that no rank has begun, so that the next can follow."""
        state = self._state
        state[StateWord.SEGMENT] += 1
        state[StateWord.CALL] += 1
        state[StateWord.PC], state[StateWord.OFFSET] = -1, 0
        self._lines[self.rank][0] = int(state[StateWord.SEGMENT]) << STEP_BITS

    def refuse_call(self) -> None:
        """Let the peers' next call be another one than mine, and leave it to them."""
        number = self.call_number
        word = (_SIGNED_OFF << 32) | number
        # Whoever looks at the tag may do so from here on: all ranks have left the last call that used this half.
        self._tags[self.rank][int(self._state[StateWord.SEGMENT]) & 1][0] = word
        self._lines[self.rank][1 + (number & 1)] = word
        self.skip_call()

    def sign_off(self, plan: Plan) -> None:
        """Withdraw the signature of the current call: whoever comes later must not go on with this rank."""
        number = self.call_number
        word = (_SIGNED_OFF << 32) | number
        if plan.tag:
            self._tags[self.rank][int(self._state[StateWord.SEGMENT]) & 1][0] = word
        else:
            self._lines[self.rank][1 + (number & 1)] = word


def _words(address: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A view of words at an address in the arena, which outlives it."""
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))
