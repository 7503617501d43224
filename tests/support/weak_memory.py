"""Shared memory whose reads and writes have no order but the one that a program asks for: all that a reader may see.

A word keeps all values that were written there. Each process has a view: for each word, the oldest value that it may
still read. A read takes any value from there on; `explore` tries them all. A fence or an order (`memory_order`) lets
views travel with words: what a process had seen before its order, a reader of its later words sees after its own order.
(The model of views of J. Kang and others, A Promising Semantics for Relaxed-Memory Concurrency, 2017, without promises:
no read sees a value that is written later in the run. A copy may: `copy_late`.)

The code under test runs on a `Page` in place of a memoryview; functions of kernels run `as_python`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple

from unisono.engine import memory_order
from unisono.engine.compile.program import PlanWord, StateWord
from unisono.engine.kernels import interpret
from unisono.engine.memory.board import LINE
from unisono.engine.rank import RankEngine

_STATE, _PLAN = 20 << 40, 21 << 40

View = dict[int, int]  # byte of a word -> the number of the oldest value that may be read there


def _join(into: View, other: View) -> None:
    for at, number in other.items():
        into[at] = max(into.get(at, 0), number)


class Memory:
    """choose(count): which of so many values a read takes."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        self._choose = choose
        self._words: dict[int, list[tuple[int, View]]] = {}
        self._fenced: View = {}
        self.running = Process()

    def read(self, at: int) -> int:
        me, values = self.running, self._words.get(at, [(0, {})])
        first = me.view.get(at, 0)
        number = first + (self._choose(len(values) - first) if len(values) - first > 1 else 0)
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
        _join(me.view, self._words.get(at, [(0, {})])[me.view[at]][1])
        return value

    def release(self, at: int, value: int) -> None:
        """A store of a kernel: the word carries what has been seen."""
        self.catch_up()
        me = self.running
        carried, me.ordered = me.ordered, dict(me.view)
        self.write(at, value)
        me.ordered = carried

    def acquire_fence(self) -> None:
        """What words that were read carry, is seen."""
        _join(self.running.view, self.running.read)

    def order_nothing(self) -> None:
        """A fence that is missing."""

    def order(self) -> None:
        """Words that are written from now on carry what has been seen; what words that were read carry, is seen."""
        self.catch_up()
        me = self.running
        _join(me.view, me.read)
        me.ordered = dict(me.view)

    def fence(self) -> None:
        """Fences of all processes come one after the other."""
        self.order()
        me = self.running
        _join(me.view, self._fenced)
        _join(self._fenced, me.view)
        me.ordered = dict(me.view)

    def change(self, at: int, value_of: Callable[[int], int]) -> int:
        """Change the last value of a word as one step, which is a full fence; return what was there before."""
        self.fence()
        values = self._words.get(at, [(0, {})])
        self.running.view[at] = len(values) - 1
        before = self.acquire(at)
        self.release(at, value_of(before))
        self.fence()
        return before

    def add(self, at: int, count: int) -> int:
        return self.change(at, lambda value: value + count)

    def swap(self, at: int, value: int) -> int:
        return self.change(at, lambda _: value)

    def unordered_add(self, at: int, count: int) -> int:
        return self.unordered_swap(at, self._words.get(at, [(0, {})])[-1][0] + count)

    def unordered_swap(self, at: int, value: int) -> int:
        before = self._words.get(at, [(0, {})])[-1][0]
        self.write(at, value)
        return before

    def copy(self, to: int, source: int, count: int) -> None:
        for k in range(0, count, 8):
            self.write(to + k, self.read(source + k))

    def copy_late(self, to: int, source: int, count: int) -> None:
        """A copy, which the processor may make later: not behind an order, a fence or a release store."""
        if self._choose(2):
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


class Process:
    """What one process has seen.

    view: what it may still read.
    read: what the words carry that it has read.
    ordered: what the words carry that it writes.
    late: copies that it has not made yet.
    """

    def __init__(self) -> None:
        self.view: View = {}
        self.read: View = {}
        self.ordered: View = {}
        self.late: list[tuple[int, int, int]] = []


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


class Scene(NamedTuple):
    """known: what the writer does before, which the reader sees. read: returns whether what it sees is allowed."""

    known: Callable[[Memory], object]
    write: Callable[[Memory], object]
    read: Callable[[Memory], bool]


class Weak:
    """The memory of the present run. unordered: the process that does not order its reads and writes, a mutant."""

    memory: Memory
    unordered: Process | None = None
    fences = True

    def order(self) -> None:
        if self.memory.running is not self.unordered:
            self.memory.order()

    def fence(self) -> None:
        (self.memory.fence if self.fences else self.memory.order)()


def allowed(weak: Weak, scene: Scene, mutant: str = "") -> Iterator[bool]:
    """Whether each result is allowed, for all that the reader may see."""

    def run(choose: Callable[[int], int]) -> bool:
        memory, writer, reader = Memory(choose), Process(), Process()
        weak.memory, memory.running = memory, writer
        scene.known(memory)
        for process in (writer, reader):
            memory.running = process
            memory.know_all()
        weak.unordered = {"writer": writer, "reader": reader}.get(mutant)
        memory.running = writer
        scene.write(memory)
        memory.running = reader
        return scene.read(memory)

    return explore(run)


def as_python(function: Any, memory: Memory, others: dict[str, Any]) -> Any:
    """A function of a kernel, from its source, that works on this memory.

    others: other values of names, there and where it calls: functions, or names of what the memory does.
    """
    names = {
        "load": memory.read, "store": memory.write, "load_acquire": memory.acquire, "store_release": memory.release,
        "acquire_fence": memory.acquire_fence, "signal_fence": lambda: None, "load_half": lambda _: 0,
        "add": memory.add, "swap": memory.swap, "memcpy": memory.copy,
        "cycles": lambda: 1, "now_ns": lambda: 1, "wait_for": lambda *_: 0,
    }  # fmt: skip
    names |= {name: getattr(memory, other) if isinstance(other, str) else other for name, other in others.items()}
    code = function.py_func
    called = {
        name: as_python(code.__globals__[name], memory, others)
        for name in code.__code__.co_names
        if name not in names and hasattr(code.__globals__.get(name), "py_func")
    }
    return FunctionType(code.__code__, {**code.__globals__, **called, **names})


def host(memory: Memory, at: int) -> Any:
    """A rank of which only the control line is there; the number of its call is 1."""

    def publish(address: int, word: int, _: int) -> None:
        memory_order.order()
        memory.write(address, word)

    made: Any = SimpleNamespace(
        words={int(StateWord.CALL): 1}, log=SimpleNamespace(enter=lambda *_: None), _cycles=lambda: 0, rank=0,
        _lines=[Page(memory, at, LINE).cast("Q")], _line=at, _inline=[[]], _publish=publish, _asleep=0,
        _state={StateWord.SEGMENT: 0}, call_number=1,
    )  # fmt: skip
    made._entries = lambda rank: RankEngine._entries(made, rank)
    return made


def nothing(memory: Memory) -> None:
    """What the writer of a scene does before, if nothing."""


def enter(memory: Memory, control: int, others: dict[str, Any]) -> None:
    """A rank enters call 1, as the only one of its group. control: where its control line is."""
    for word, value in ((StateWord.CONTROL, control), (StateWord.RANKS, 1), (StateWord.CALL, 1)):
        memory.write(_STATE + 8 * word, value)
    memory.write(_PLAN + 8 * PlanWord.SIGNATURE, 77)
    as_python(interpret._gate, memory, others)(_PLAN, 0, 0, 0, 0, _STATE)
