"""A table as steps of gpus that send each other messages, for the formats that are written.

Sums have the order of the table: if a gpu's own content is not the first of several inputs, they are combined in
scratch.
"""

from typing import NamedTuple

from ..table import Schedule
from .buffers import Place, shape_of


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
    rounds, used = shape_of(schedule)[0].runs(schedule)
    out, scratch = list[Op](), [used] * schedule.ranks

    def spare(gpu: int, many: int) -> Place:
        scratch[gpu] += many
        return "s", scratch[gpu] - many

    for runs in rounds:
        written = {(run.gpu, run.target[0], run.target[1] + k) for run in runs for k in range(run.many)}
        for gpu, target, sources, many in runs:
            for at, (src, place) in enumerate(sources):
                if src != gpu:
                    out.append(Op(src, "s", place, place, many, gpu))
                elif place != target and any((gpu, place[0], place[1] + k) in written for k in range(many)):
                    sources[at] = gpu, spare(gpu, many)
                    out.append(Op(gpu, "cpy", place, sources[at][1], many))
        for gpu, target, sources, many in runs:
            own, into = (gpu, target), target
            begun = own in sources and (sources[0] == own or len(sources) == 2)
            if begun:
                sources.remove(own)
            elif len(sources) > 1:
                into = spare(gpu, many)
            for src, place in sources:
                if src == gpu:
                    out.append(Op(gpu, "re" if begun else "cpy", place, into, many))
                else:
                    out.append(Op(gpu, "rrc" if begun else "r", into, into, many, src))
                begun = True
            if into != target:
                out.append(Op(gpu, "cpy", into, target, many))
    return out, scratch
