"""A table as steps of gpus that send each other messages, for the formats that are written.

Sums have the order of the table: if a gpu's own content is not the first of several inputs, they are combined in
scratch.
"""

from collections import defaultdict
from typing import NamedTuple

from ..table import Schedule
from .buffers import Place, shape_of


class _Spare:
    """Scratch that nothing else uses in a round."""

    def __init__(self, first: int) -> None:
        self._next: dict[int, int] = defaultdict(lambda: first)

    def take(self, gpu: int, many: int) -> Place:
        first = self._next[gpu]
        self._next[gpu] += many
        return "s", first


class Op(NamedTuple):
    """A step to write: s, r, rrc, cpy or re, as MSCCL has them. peer: to whom it sends, or from whom it receives."""

    gpu: int
    kind: str
    source: Place
    target: Place
    many: int
    peer: int = -1

    def reads(self) -> list[Place]:
        return [] if self.kind == "r" else [(self.source[0], self.source[1] + k) for k in range(self.many)]

    def writes(self) -> list[Place]:
        return [] if self.kind == "s" else [(self.target[0], self.target[1] + k) for k in range(self.many)]


def program(schedule: Schedule) -> tuple[list[Op], list[int]]:
    """The steps of all gpus, in an order in which each can be taken, and the scratch chunks of each gpu."""
    rounds, free = shape_of(schedule)[0].runs(schedule)
    out: list[Op] = []
    for runs in rounds:
        written = {(run.gpu, run.target[0], run.target[1] + k) for run in runs for k in range(run.many)}
        spare = _Spare(free)
        for gpu, target, sources, many in runs:
            for at, (src, place) in enumerate(sources):
                if src != gpu:
                    out.append(Op(src, "s", place, place, many, gpu))
                elif place != target and any((gpu, place[0], place[1] + k) in written for k in range(many)):
                    kept = spare.take(gpu, many)
                    out.append(Op(gpu, "cpy", place, kept, many))
                    sources[at] = gpu, kept
        for gpu, target, sources, many in runs:
            own, into = (gpu, target), target
            if own in sources and (sources[0] == own or len(sources) == 2):
                sources.remove(own)
                begun = True
            else:
                begun = False
                into = target if len(sources) == 1 else spare.take(gpu, many)
            for src, place in sources:
                if src == gpu:
                    out.append(Op(gpu, "re" if begun else "cpy", place, into, many))
                else:
                    out.append(Op(gpu, "rrc" if begun else "r", into, into, many, src))
                begun = True
            if into != target:
                out.append(Op(gpu, "cpy", into, target, many))
    places = [(op.gpu, at) for op in out for at in (*op.reads(), *op.writes())]
    sizes = [0] * schedule.ranks
    for gpu, (letter, chunk) in places:
        if letter == "s":
            sizes[gpu] = max(sizes[gpu], chunk + 1)
    return out, sizes
