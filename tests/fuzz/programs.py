"""What a program is: calls that all ranks of a world make in one order, as data that prints as Python.

A step names its group: "world", or one that an earlier step has made. Ranks that are not in it leave the step out.
"""

from dataclasses import dataclass
from typing import ClassVar

from tests.support.matrix import Case


@dataclass(frozen=True)
class Call:
    """A collective; with the case's async_op it goes on until a Wait or the end.

    mistakes: what some ranks do instead, see `ranks.MISTAKES`. The call then raises on every rank, and the next call of
    the group is as good as ever.
    """

    case: Case
    group: str = "world"
    algorithm: str | None = None
    mistakes: tuple[tuple[int, str], ...] = ()

    @property
    def async_op(self) -> bool:
        return self.case.async_op


@dataclass(frozen=True)
class Barrier:
    form: ClassVar = "barrier"
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
    rank: int
    delay_s: float


@dataclass(frozen=True)
class Wait:
    """Wait for all that goes on, in an order drawn from the seed."""

    seed: int = 0


Step = Call | Barrier | Coalesced | Objects | Messages | MakeGroup | Split | Threads | Late | Wait


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

    def __str__(self) -> str:
        steps = "".join(f"    {step},\n" for step in self.steps)
        return f"Program({self.hosts!r}, (\n{steps}), {self.settings}, {self.api!r})"
