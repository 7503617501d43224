"""What a program is: calls that all ranks of a world make in one order, as data that prints as Python.

A step names its group: "world", or one that an earlier step has made. Ranks that are not in it leave the step out.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from tests.support.matrix import Case


@dataclass(frozen=True)
class Call:
    """A collective; with the case's async_op it goes on until a Wait or the end."""

    case: Case
    group: str = "world"
    algorithm: str | None = None

    @property
    def async_op(self) -> bool:
        """That of the case."""
        return self.case.async_op


@dataclass(frozen=True)
class Wrong:
    """A collective that some ranks refuse, or do not make: they make a barrier. mistakes: rank -> see `ranks.MISTAKES`.

    It raises on every rank, and the next call of the group is as good as ever.
    """

    call: Call
    mistakes: tuple[tuple[int, str], ...]

    @property
    def group(self) -> str:
        """That of the call."""
        return self.call.group

    @property
    def async_op(self) -> bool:
        """That of the call."""
        return self.call.async_op


@dataclass(frozen=True)
class Barrier:
    """A barrier, in the background or not."""

    group: str = "world"
    algorithm: str | None = None
    async_op: bool = False


@dataclass(frozen=True)
class Coalesced:
    """One of the calls of many tensors (form). parts: dtype and elements of each."""

    form: str
    parts: tuple[tuple[str, int], ...]
    op: str = "sum"
    group: str = "world"
    async_op: bool = False
    strided: bool = False
    root: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Objects:
    """One of the collectives of Python objects."""

    form: str
    group: str = "world"
    root: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Messages:
    """Messages from rank to rank. way: who sends how to whom, see `messages.WAYS`; shift: how far, or which root."""

    way: str
    dtype: str
    n: int
    tag: int
    shift: int = 1
    group: str = "world"
    layout: str = "contiguous"
    shared: bool = False
    seed: int = 0


@dataclass(frozen=True)
class MakeGroup:
    """new_group of these ranks of the parent, modulo its size."""

    name: str
    ranks: tuple[int, ...]
    parent: str = "world"


@dataclass(frozen=True)
class Split:
    """split of the world: the color of each rank, below 0 in none, and the keys."""

    name: str
    colors: tuple[int, ...]
    keys: tuple[int, ...]


@dataclass(frozen=True)
class Threads:
    """Steps that threads make at a time, each in a group of its own, which its steps call "world"."""

    branches: "tuple[tuple[Step, ...], ...]"


@dataclass(frozen=True)
class Late:
    """A rank comes late by so much."""

    rank: int
    delay_s: float


@dataclass(frozen=True)
class Wait:
    """Wait for all that goes on, in an order drawn from the seed."""

    seed: int = 0


Step = Call | Wrong | Barrier | Coalesced | Objects | Messages | MakeGroup | Split | Threads | Late | Wait


@dataclass(frozen=True)
class Program:
    """Steps, and the world for them.

    hosts: as `Hosts.parse` reads them. settings: fields of Config. api: "unisono", or "torch" (torch.distributed with
    our backend).
    """

    hosts: str
    steps: tuple[Step, ...]
    settings: tuple[tuple[str, float | str], ...] = ()
    api: str = "unisono"

    @property
    def world(self) -> tuple[object, ...]:
        """What programs must have in common to run in one world."""
        return self.hosts, self.settings, self.api


def shown(value: Any, indent: str = "") -> str:
    """A value as Python, without fields that are as by default, a step a line."""
    if isinstance(value, tuple) and value and isinstance(value[0], (tuple, *_STEPS)):
        lines = "".join(f"{indent}    {shown(item, indent + '    ')},\n" for item in value)
        return f"(\n{lines}{indent})"
    if not isinstance(value, (Program, Case, *_STEPS)):
        return repr(value)
    whole: Any = value
    given = [f for f in fields(whole) if getattr(value, f.name) != f.default]
    inside = ", ".join(f"{f.name}={shown(getattr(value, f.name), indent)}" for f in given)
    return f"{type(value).__name__}({inside})"


_STEPS = Step.__args__


def simpler(program: Program) -> Iterator[Program]:
    """Programs with fewer steps or settings, those first that are much smaller."""
    steps = program.steps
    width = len(steps) // 2
    while width:
        for at in range(0, len(steps), width):
            yield replace(program, steps=steps[:at] + steps[at + width :])
        width //= 2
    for k in range(len(program.settings)):
        yield replace(program, settings=program.settings[:k] + program.settings[k + 1 :])


T = TypeVar("T")


def shrink(whole: T, simpler: Callable[[T], Iterable[T]], fails: Callable[[T], bool], until_s: float) -> T:
    """The smallest that is found until then (time.monotonic). simpler: those to try, much smaller ones first."""
    found: T | None = whole
    while found is not None:
        whole = found
        found = next((one for one in simpler(whole) if time.monotonic() < until_s and fails(one)), None)
    return whole
