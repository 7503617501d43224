"""One rank of a group: its private state for the kernel, its programs and plans."""

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from ..base.config import Config
from ..base.python import at_terminal, tell
from ..base.records import CallRecord
from ..schedule.hosts import Hosts
from ..schedule.table import Schedule
from .clock import Clock, read_cycles, slow_yield_cycles
from .compile.kept_programs import program
from .compile.plan import Blocks, Plan, bind
from .compile.program import IN_TIME, REACH, STEP_BITS, CallWord, LineWord, Lowering, PlanWord, Program, StateWord
from .helpers import address_bytes, scratch_bytes
from .kernels import kernel, unit
from .logs.plan_registry import GroupNote, PlanNote
from .logs.rank_logs import CALLS, CallLog
from .memory.arena import Arena
from .memory.board import LINE
from .memory.heap import Heap
from .memory.sub_arena import Lender, SubArena
from .memory_order import order
from .process.alive import may_read, start_ticks
from .process.nested import caller
from .process.stacks import answer_with_stacks
from .reducers import CustomOp, combine_address

_SEGMENT, _PC, _OFFSET, _CALL = map(int, (StateWord.SEGMENT, StateWord.PC, StateWord.OFFSET, StateWord.CALL))
_PROGRESS, _NUMBER, _SIGNATURE = map(int, (LineWord.PROGRESS, LineWord.NUMBER, LineWord.SIGNATURE))
_READERS = int(StateWord.READERS_0)
"""The same words as plain integers, which Python finds faster."""

_programs: dict[tuple[int, int], dict[tuple[int, Lowering, Hosts | None], Program]] = {}
"""The programs of this process, by (size, rank) of the group. Groups with equal size and rank share them."""
_MOST_PROGRAMS = 256  # the most programs that are kept for a size and rank: some users make a new table for each call

_KERNELS = (
    "interpret.run", "known.call", "known.find", "known.enter",
    "waiting.time_wakes", "waiting.read_cycles", "waiting.wait", "waiting.publish_and_wake", "waiting.register",
)  # fmt: skip


@cache
def interpreter() -> Callable[[int, int, int, int], int]:
    """The compiled interpreter, run(plan, input, output, state); all are addresses.

    It is compiled once per installation; a user at a terminal is told.
    """
    if at_terminal(sys.stderr) and not all(unit(name).on_disk for name in _KERNELS):
        tell("unisono: compiling its kernel, once per installation: some ten seconds ...\n")
    run, *_ = map(kernel, _KERNELS)
    return run


def warm_up() -> None:
    """Compile or load the kernels, also those of calls over hosts, and the most common reducers. Says nothing."""
    for name in (*_KERNELS, "waiting.poll"):
        kernel(name)
    for dtype in ("float32", "bfloat16"):
        for last in (False, True):
            combine_address(dtype, "avg", last)


class RankEngine:
    """One rank of a group whose ranks share an arena."""

    def __init__(self, arena: Arena | SubArena, rank: int, config: Config) -> None:
        self.arena, self.rank, self.size, self.config = arena, rank, arena.size, config.replace(**arena.shape)
        self.run, self._publish = interpreter(), kernel("waiting.publish_and_wake")
        self._mapping = arena.map  # keeps the addresses below valid
        if isinstance(arena, Arena):
            self.heap = Heap(arena, rank)
            self.lender = Lender(arena, self.heap)
            arena.reserve_staging(rank)
            arena.board(rank).stacks = answer_with_stacks()
        else:
            self.heap, self.lender = arena.lender.heap, arena.lender
        self.plan_registry = self.lender.plan_registry
        self.log = arena.log(rank)
        self.plan_registry.used_by(self.log)
        self._noted: int | None = None
        self.heap_first, self.heap_end = arena.heap(rank), arena.heap(rank) + arena.heap_bytes
        self._all_ranks = np.ones(self.size, np.int64)
        self._scratch = np.empty(scratch_bytes(self.size), np.uint8)  # the kernel writes before it reads
        self._tables = {
            StateWord.TENSORS: np.zeros(2 * self.size, np.int64),
            StateWord.HEAPS: np.array([arena.heap(q) for q in range(self.size)], np.int64),
            StateWord.ADDRESSES: np.zeros(address_bytes(self.size) // 8, np.int64),
        }
        self._state = state = np.zeros(StateWord.WORDS, np.int64)
        self.state, self.words = state.ctypes.data, memoryview(state)  # type: ignore[arg-type]  # it is a buffer
        self.processors_to_spare = arena.neighbours < arena.processors
        state[StateWord.PC] = -1
        state[StateWord.CALL] = 1
        state[StateWord.RANKS], state[StateWord.ME] = self.size, rank
        state[StateWord.CONTROL], state[StateWord.STAGING] = arena.control(0), arena.stage(0)
        state[StateWord.STAGE_STRIDE], state[StateWord.HALF] = arena.stage_stride, arena.half
        self.most_spins = 0 if arena.oversubscribed else config.spins
        state[StateWord.SPINS] = state[StateWord.LEARNED] = self.most_spins
        state[StateWord.SLOW_YIELD_CYCLES] = slow_yield_cycles()
        kernel("waiting.register")()
        state[StateWord.SLEEPS] = IN_TIME
        state[StateWord.LOOK_UP_NS] = int(config.look_up_s * 1e9)
        state[StateWord.SCRATCH] = (self._scratch.ctypes.data + 63) & -64
        for word, table in self._tables.items():
            state[word] = table.ctypes.data
        state[StateWord.LOG], state[StateWord.LOG_MASK] = arena.log_address(rank), CALLS - 1
        self._line = arena.control(rank)
        self._asleep = self._line + 8 * LineWord.ASLEEP
        self._lines = [arena.words(arena.control(q), LINE // 8) for q in range(self.size)]
        self._inline = [
            [arena.words(arena.stage(q) + h * arena.half, CallWord.WORDS) for h in (0, 1)] for q in range(self.size)
        ]
        self._programs = _programs.setdefault((self.size, rank), {})
        arena.board(rank).set_process(os.getpid(), start_ticks(os.getpid()))
        boards = map(arena.board, range(self.size))  # on all of them is a process by now
        self._join(config.cross_memory_bytes > 0 and not all(may_read(board.pid, board.ticks) for board in boards))

    def _join(self, stages: bool) -> None:
        """Tell the other ranks that this one uses this memory."""
        line = self._lines[self.rank]
        line[LineWord.STAGES], line[LineWord.PID], line[LineWord.JOINED] = stages, os.getpid(), 1

    @property
    def crosses_memory(self) -> bool:
        """Do system calls reach the private tensors of all ranks, as far as is known by now?

        Ranks may differ in that, and so in how they plan a call; they find that out at the gate.
        """
        return not any(line[LineWord.STAGES] for line in self._lines)

    def cross_no_more(self) -> None:
        """Stage private tensors from now on, and tell the other ranks."""
        self._lines[self.rank][LineWord.STAGES] = 1

    def program(self, schedule: Schedule, lowering: Lowering) -> Program:
        """This rank's program for a schedule. At first use the table is proved and compiled, and the result proved."""
        key = schedule.digest, lowering, schedule.hosts
        found = self._programs.get(key)
        if found is None:
            found = program(schedule, lowering, self.rank)
            if len(self._programs) >= _MOST_PROGRAMS:
                self._programs.clear()
            self._programs[key] = found
        return found

    def plan(
        self,
        schedule: Schedule,
        lowering: Lowering,
        record: CallRecord,
        dtype: str,
        blocks: Blocks,
        op: str | CustomOp | None = None,
    ) -> Plan:
        """The plan of a schedule for blocks of this dtype and, where values are combined, this op. See
        `engine.compile.plan.bind`."""
        kernels = (0, 0)
        if op is not None:
            kernels = combine_address(dtype, op, last=False), combine_address(dtype, op, last=True)
        program = self.program(schedule, lowering)
        plan = bind(program, record, blocks, kernels, self.arena.half, self.config)
        plan.words[PlanWord.NOTE] = note = self.note_plan(plan)
        return replace(plan, note=note)

    def note_plan(self, plan: Plan) -> int:
        """Write a note on a plan, for readers of the log; return its number."""
        where = caller()
        if where.startswith(threading.__file__):  # planned on a thread of this package
            where = ""
        return self.plan_registry.add_plan(PlanNote(plan.record._replace(where=where), plan.nbytes))

    def note_group(self, name: str, gid: int = 0) -> None:
        """Write a note on this rank's group, for readers of its log. gid: the number of a group on several hosts."""
        self._note = GroupNote(name, self.arena.start, self.rank, self.size, "", *Clock.now())
        self._noted = self.plan_registry.add_group(self._note)
        if self.plan_registry.recorder is not None:
            self.plan_registry.recorder.follow(self, name, gid)

    def log_to(self, file: str = "", memory: mmap.mmap | None = None) -> None:
        """Log calls in this mapped file from now on; without one, in shared memory. Do not call this in a call."""
        self._log_file = memory  # keeps the address valid
        if memory is None:
            self.log, address = self.arena.log(self.rank), self.arena.log_address(self.rank)
        else:
            self.log = CallLog(memoryview(memory))
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.plan_registry.used_by(self.log)
        self._state[StateWord.LOG], self._state[StateWord.LOG_MASK] = address, self.log.calls - 1
        if self._noted is not None:
            self.plan_registry.set_group(self._noted, self._note._replace(file=file))

    def forget_group(self) -> None:
        """Take `note_group` back."""
        if self.plan_registry.recorder is not None and isinstance(self.arena, Arena):
            self.plan_registry.recorder.close()
        if self._noted is not None:
            self.plan_registry.remove_group(self._noted)
            self._noted = None

    # For the slow paths. For the words see `LineWord` and `CallWord`.
    @property
    def call_number(self) -> int:
        """The number of this rank's current call, or of its next call between calls."""
        return int(self._state[StateWord.CALL])

    @property
    def unfinished(self) -> bool:
        """Has the kernel returned before the call was finished?"""
        words = self.words
        return words[_PC] >= 0 or words[_OFFSET] > 0

    def at_gate(self, gate_row: int) -> bool:
        """Has this rank not yet passed the gate of the call?"""
        return int(self._state[StateWord.OFFSET]) == 0 and int(self._state[StateWord.PC]) <= gate_row

    def behind(self) -> list[int]:
        """After a call that this rank has skipped: the ranks that have not ended the call before that one.

        They may still look at this rank's words of that call, and the next call's words are in the same place.
        """
        segment = self.words[_SEGMENT]
        if self.words[_READERS + (segment & 1)] != self._all_ranks.ctypes.data:
            return []
        goal = (segment - 1) << STEP_BITS
        return [q for q, line in enumerate(self._lines) if q != self.rank and _seen(line, _PROGRESS) < goal]

    def has_ended(self, rank: int) -> bool:
        """Has a rank finished this rank's current call?"""
        return _seen(self._lines[rank], _PROGRESS) > int(self._state[StateWord.SEGMENT]) << STEP_BITS

    def entered(self, rank: int) -> int:
        """The number of the latest call that a rank has entered; 0 before its first."""
        return max(number for number, _ in self._entries(rank))

    def signature(self, rank: int, number: int) -> int:
        """The signature with which a rank entered the call of this number; 0 if it did not, or has withdrawn it.

        A peer is at most one call ahead of this rank, so the word for this rank's call is still there.
        """
        line, odd = self._lines[rank], number & 1
        if _seen(line, _NUMBER + odd) == number:
            return _seen(line, _SIGNATURE + odd) & ~REACH
        return next((signature & ~REACH for entered, signature in self._entries(rank) if entered == number), 0)

    def _entries(self, rank: int) -> list[tuple[int, int]]:
        """The (number, signature) of the latest calls that a rank has entered."""
        line = self._lines[rank]
        seen = [(_seen(line, _NUMBER + odd), _seen(line, _SIGNATURE + odd)) for odd in (0, 1)]
        return seen + [(_seen(call, CallWord.NUMBER), _seen(call, CallWord.SIGNATURE)) for call in self._inline[rank]]

    def begin_again(self) -> None:
        """Go back to the beginning of the call. This rank has not entered the gate yet."""
        self._state[StateWord.PC] = -1

    def skip_call(self) -> None:
        """Leave a call in which no data has moved; the next call can follow.

        Nothing tells that the other ranks have entered the call. So the next one waits first for the ranks `behind`, as
        the kernel waits for ranks that may still read its staging half.
        """
        words = self.words
        self.log.leave(words[_CALL], read_cycles())
        words[_SEGMENT] = segment = words[_SEGMENT] + 1
        words[_READERS + (segment & 1)] = self._all_ranks.ctypes.data
        words[_CALL] += 1
        words[_PC], words[_OFFSET] = -1, 0
        self._publish(self._line + 8 * _PROGRESS, segment << STEP_BITS, self._asleep)

    def withdraw(self) -> None:
        """Take the signature of the current call back: ranks of this host may wait for steps that this rank skips."""
        self._lines[self.rank][_SIGNATURE + (self.call_number & 1)] = 0
        order()

    def refuse_call(self) -> None:
        """Enter the next call with a signature that differs from all others, so that the peers raise; then skip it.

        Waits for no rank. If ranks are `behind`, the number and the signature stay as they are: ranks that come to this
        call see that this rank has ended it, and has no signature for it.
        """
        self.log.enter(self.call_number, 0, read_cycles())
        if not self.behind():
            self._sign_off(inline=True)
        self.skip_call()

    def sign_off(self, *, inline: bool) -> None:
        """Withdraw the signature of the current call, so that ranks that come later do not go on with this one.

        They shall not access the memory of this process by its number either: another process may have the number then.
        """
        self._lines[self.rank][LineWord.PID] = 0
        self.log.leave(self.call_number, read_cycles())
        self._sign_off(inline=inline)

    def _sign_off(self, *, inline: bool) -> None:
        """Enter the current call with signature 0. No call has this signature.

        A rank that has read this rank's tensors in the call looks at the signature afterwards: it must see it before
        the user overwrites them.
        """
        number, half = self.call_number, int(self._state[StateWord.SEGMENT]) & 1
        if inline:
            self._inline[self.rank][half][CallWord.SIGNATURE] = 0
            address = self.arena.stage(self.rank) + half * self.arena.half + 8 * CallWord.NUMBER
            self._publish(address, number, self._asleep)
        self._lines[self.rank][_SIGNATURE + (number & 1)] = 0
        self._publish(self._line + 8 * (_NUMBER + (number & 1)), number, self._asleep)
        order()


def _seen(words: memoryview, word: int) -> int:
    """Read a word of a peer, before anything that is read later."""
    value: int = words[word]
    order()
    return value
