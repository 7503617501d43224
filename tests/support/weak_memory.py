"""Shared memory whose reads and writes have no order but the one that a program asks for: all that a reader may see.

A word keeps all values that were written there. Each process has a view: for each word, the oldest value that it may
still read. A read takes any value from there on; `explore` tries them all. A fence or an order (`memory_order`) lets
views travel with words: what a process had seen before its order, a reader of its later words sees after its own order.
(The model of views of J. Kang and others, A Promising Semantics for Relaxed-Memory Concurrency, 2017, without promises:
no read sees a value that is written later in the run. A copy may: `copy_late`.)

The code under test runs on a `Page` in place of a memoryview; functions of kernels run `as_python`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType, SimpleNamespace
from typing import Any, ClassVar, TypeVar

from unisono.engine.compile.program import PlanWord, StateWord
from unisono.engine.kernels import interpret, waiting
from unisono.engine.memory.board import LINE
from unisono.engine.rank import RankEngine

T = TypeVar("T")
DATA = 1 << 30  # a word of memory that other words are about
STATES, PLAN, CONTROL, CURSORS, RING, TARGET, PAIRS, STAGE, FLAGS, LANES, ROW, OUT, OWN = (
    n << 40 for n in range(1, 14)
)
Mutant = Mapping[str, str]
"""writer, reader -> the operations that order nothing there, as words: order, fence; acquire, release, add, ..."""

View = dict[int, int]  # byte of a word -> the number of the oldest value that may be read there


def _join(into: View, other: View) -> None:
    for at, number in other.items():
        into[at] = max(into.get(at, 0), number)


@dataclass
class Process:
    """What one process has seen.

    without: see `Memory`.
    view: what it may still read.
    read, ordered: what the words carry that it has read, or that it writes.
    late: copies that it has not made yet.
    """

    without: Sequence[str]
    view: View = field(default_factory=dict)
    read: View = field(default_factory=dict)
    ordered: View = field(default_factory=dict)
    late: list[tuple[int, int, int]] = field(default_factory=list)


class Memory:
    """choose(count): which of so many values a read takes.

    writer, reader: the processes of a scene.
    without: process -> the operations that order nothing there, a mutant.
    """

    latest: ClassVar[Memory]

    def __init__(self, choose: Callable[[int], int], without: Mutant | None = None) -> None:
        Memory.latest, self.choose = self, choose
        self._words: dict[int, list[tuple[int, View]]] = {}
        self._fenced: View = {}
        self.writer, self.reader = (Process((without or {}).get(who, "").split()) for who in ("writer", "reader"))
        self.running = self.writer

    def by(self, process: Process, action: Callable[[Memory], T]) -> T:
        before, self.running = self.running, process
        try:
            return action(self)
        finally:
            self.running = before

    def read(self, at: int) -> int:
        me, values = self.running, self._words.get(at, [(0, {})])
        first = me.view.get(at, 0)
        number = first + (self.choose(len(values) - first) if len(values) - first > 1 else 0)
        me.view[at] = number
        _join(me.read, values[number][1])
        return values[number][0]

    def write(self, at: int, value: int) -> None:
        """A word that is written again as it is carries no more than before: so a reader may see more, not less."""
        me, values = self.running, self._words.get(at, [(0, {})])
        if value == values[-1][0]:
            me.view[at] = len(values) - 1
            return
        me.view[at] = len(values)
        self._words[at] = values
        values.append((value, dict(me.ordered)))

    def written(self, start: int, end: int) -> list[int]:
        """The words there that are not 0 from beginning to end, in order: a read of others finds 0, and no choice."""
        return sorted(at for at in self._words if start <= at < end)

    def acquire(self, at: int) -> int:
        """A load of a kernel: what the word carries, is seen."""
        value, me = self.read(at), self.running
        if "acquire" not in me.without:
            _join(me.view, self._words.get(at, [(0, {})])[me.view[at]][1])
        return value

    def release(self, at: int, value: int) -> None:
        """A store of a kernel: the word carries what has been seen."""
        me = self.running
        if "release" in me.without:
            self.write(at, value)
            return
        self.catch_up()
        carried, me.ordered = me.ordered, dict(me.view)
        self.write(at, value)
        me.ordered = carried

    def acquire_fence(self) -> None:
        """What words that were read carry, is seen."""
        if "acquire_fence" not in self.running.without:
            _join(self.running.view, self.running.read)

    def order(self) -> None:
        """Words that are written from now on carry what has been seen; what words that were read carry, is seen."""
        me = self.running
        if "order" not in me.without:
            self.catch_up()
            _join(me.view, me.read)
            me.ordered = dict(me.view)

    def fence(self) -> None:
        """Fences of all processes come one after the other."""
        self.order()
        me = self.running
        if "fence" in me.without:
            return
        _join(me.view, self._fenced)
        _join(self._fenced, me.view)
        me.ordered = dict(me.view)

    def change(self, at: int, value_of: Callable[[int], int], how: str) -> int:
        """Change the last value of a word as one step, which is a full fence; return what was there before."""
        values = self._words.get(at, [(0, {})])
        if how in self.running.without:
            before = values[-1][0]
            self.write(at, value_of(before))
            return before
        self.fence()
        self.running.view[at] = len(values) - 1
        before = self.acquire(at)
        self.release(at, value_of(before))
        self.fence()
        return before

    def add(self, at: int, count: int) -> int:
        return self.change(at, lambda value: value + count, "add")

    def swap(self, at: int, value: int) -> int:
        return self.change(at, lambda _: value, "swap")

    def copy(self, to: int, source: int, count: int) -> None:
        for k in range(0, count, 8):
            self.write(to + k, self.read(source + k))

    def copy_late(self, to: int, source: int, count: int) -> None:
        """A copy, which the processor may make later: not behind an order, a fence or a release store."""
        if self.choose(2):
            self.running.late.append((to, source, count))
        else:
            self.copy(to, source, count)

    def catch_up(self) -> None:
        """Make the copies now that have not been made yet."""
        while self.running.late:
            self.copy(*self.running.late.pop(0))

    def know_all(self) -> None:
        """The running process sees all that has been written."""
        _join(self.running.view, {at: len(values) - 1 for at, values in self._words.items()})


class Page:
    """A memoryview of such memory. unit: bytes of an element; step: elements from one to the next."""

    def __init__(self, memory: Memory, start: int, nbytes: int, unit: int = 1, step: int = 1) -> None:
        self._memory, self._start, self._nbytes, self._unit, self._step = memory, start, nbytes, unit, step

    def cast(self, kind: str) -> Page:
        return Page(self._memory, self._start, self._nbytes, 1 if kind == "B" else 8)

    def __len__(self) -> int:
        return (self._nbytes // self._unit + self._step - 1) // self._step

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            first, last, step = key.indices(len(self))
            return Page(self._memory, self._start + first * self._unit, (last - first) * self._unit, self._unit, step)
        return self._memory.read(self._at(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, slice):
            first, _, _ = key.indices(len(self))
            data, start = bytes(value), self._start + first * self._unit
            assert start % 8 == 0
            for k in range(0, len(data), 8):
                self._memory.write(start + k, int.from_bytes(data[k : k + 8], "little"))
        else:
            self._memory.write(self._at(key), value)

    def _at(self, index: int) -> int:
        assert self._unit == 8
        assert 0 <= index < len(self)
        return self._start + 8 * index * self._step

    def __bytes__(self) -> bytes:
        end, first = self._start + self._nbytes, self._start // 8 * 8
        data = bytearray(end - first + 7)
        for at in self._memory.written(first, end):
            data[at - first : at - first + 8] = self._memory.read(at).to_bytes(8, "little")
        return bytes(data[self._start - first :][: self._nbytes])

    def tolist(self) -> list[int]:
        return [self[k] for k in range(len(self))]


def explore(scene: Callable[[Callable[[int], int]], Any]) -> Iterator[Any]:
    """The results of a scene for all choices, one after the other. scene(choose): see `Memory`."""
    script: list[tuple[int, int]] = []
    while True:
        at = 0

        def choose(count: int) -> int:
            nonlocal at
            if at == len(script):
                script.append((0, count))
            at += 1
            return script[at - 1][0]

        yield scene(choose)
        while script and script[-1][0] + 1 == script[-1][1]:
            script.pop()
        if not script:
            return
        script[-1] = script[-1][0] + 1, script[-1][1]


Action = Callable[[Memory], object]
Scene = Callable[[Memory], bool]
"""What happens in memory. Returns whether the processes have seen what they should."""


def outcomes(scene: Scene, without: Mutant | None = None) -> Iterator[bool]:
    """What a scene returns, for all that its processes may see. without: see `Memory`."""
    return explore(lambda choose: scene(Memory(choose, without)))


def published(known: Action, write: Action, read: Scene, then: Scene | None = None) -> Scene:
    """The writer does something known to all, then writes; the reader may see any part of it. It says whether it may.

    then: what the writer sees in the end, where one of both must see the other.
    """

    def scene(memory: Memory) -> bool:
        memory.by(memory.writer, known)
        for process in (memory.writer, memory.reader):
            memory.by(process, Memory.know_all)
        memory.by(memory.writer, write)
        seen = [memory.by(memory.reader, read)]
        if then is not None:
            seen.append(memory.by(memory.writer, then))
        return any(seen)

    return scene


def copied(known: Action, copy: Action, overwrite: Action) -> Scene:
    """The writer copies a word to TARGET, perhaps late, then says so. The reader writes 9 there when it hears that."""

    def remains(memory: Memory) -> bool:
        memory.catch_up()
        return memory.read(TARGET) != 9

    return published(known, copy, lambda memory: bool(overwrite(memory)), remains)


def as_python(function: Any, memory: Memory, **others: Callable[..., Any] | int) -> Any:
    """A function of a kernel, from its source, that works on this memory.

    others: other values of names, there and where it calls.
    """
    names: dict[str, Any] = {
        "load": memory.read, "store": memory.write, "load_acquire": memory.acquire, "store_release": memory.release,
        "acquire_fence": memory.acquire_fence, "signal_fence": lambda: None, "load_half": lambda _: 0,
        "add": memory.add, "swap": memory.swap, "memcpy": memory.copy,
        "cycles": lambda: 1, "now_ns": lambda: 1, "wait_for": lambda *_: 0, **others,
    }  # fmt: skip
    code = function.py_func
    called = {
        name: as_python(code.__globals__[name], memory, **others)
        for name in code.__code__.co_names
        if name not in names and hasattr(code.__globals__.get(name), "py_func")
    }
    return FunctionType(code.__code__, {**code.__globals__, **called, **names})


def put_words(memory: Memory, at: int, words: Mapping[int, int]) -> int:
    """Write words of a table that begins there; return where."""
    for word, value in words.items():
        memory.write(at + 8 * word, value)
    return at


def set_state(memory: Memory, me: int, ranks: int = 2, control: int = CONTROL) -> int:
    """The state of rank `me` in call 1; and the plan of this call."""
    put_words(memory, PLAN, {PlanWord.SIGNATURE: 77, PlanWord.SHARED: 99 * (ranks > 1)})
    state = STATES + (me << 30)
    return put_words(memory, state, {
        StateWord.RANKS: ranks, StateWord.ME: me, StateWord.CALL: 1, StateWord.CONTROL: control,
        StateWord.TENSORS: state + (3 << 20), StateWord.HEAPS: state + (4 << 20), StateWord.LOG: state + (2 << 20),
    })  # fmt: skip


def pass_gate(memory: Memory, me: int, ranks: int = 2, control: int = CONTROL) -> int:
    """A rank enters call 1. control: where the control lines are."""
    state = set_state(memory, me, ranks, control)
    return int(as_python(interpret._gate, memory)(PLAN, 0, 0, 1000 + me, 2000 + me, state))


class Rank(RankEngine):
    """A rank of which only the control line is there, in call 1."""

    def __init__(self, memory: Memory, at: int) -> None:
        self._lines, self._line, self._asleep = [Page(memory, at, LINE).cast("Q")], at, 0  # type: ignore[list-item]
        self._publish: Any = as_python(waiting.publish_and_wake, memory)
        self._state: Any = {StateWord.SEGMENT: 0, StateWord.CALL: 1}
        self.log: Any = SimpleNamespace(leave=lambda *_: None)
        self.rank, self._inline = 0, [[]]

    def join(self) -> None:
        """Tell the others that this rank uses the memory."""
        self._join(stages=False)


def nothing(memory: Memory) -> None:
    """What the writer of a scene does before, if nothing."""
