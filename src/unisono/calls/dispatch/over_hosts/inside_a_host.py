"""The parts of a call over several hosts that are inside one host: programs of the kernel in the group of its ranks.

The relay runs them (`InsideProgram.run`), and reports when the kernel waits: the ranks look at each other in the call
as a whole. The ranks of a host have entered the same call by then. So their programs differ only if some ranks cannot
reach the memory of others; then they all run the staged program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from ....base.errors import InternalError
from ....engine.compile.plan import CallPlan
from ....engine.compile.program import DISAGREE, FAILED, WAITING
from ....ranks.group.group import Group
from ....schedule import BLOCKED, ONE_IN, ONE_OUT, REDUCING
from ...arguments import blank
from ..lowering_mismatch import stage_for_a_while, takes_turn
from ..planning import make_plan
from ..request import Request, Tensors
from ..retry_rules import stage_private
from ..step import kernel_address
from .hosts_plan import At, Inside

View = Callable[[At], torch.Tensor]
"""Finds chunks in memory."""


def inside_request(part: Inside, whole: Request, seat: int, view: View, empty: torch.Tensor) -> Request:
    """The request for a part of the call `whole`. seat: this rank's. view: finds chunks. empty: an empty tensor."""
    op = ("sum" if whole.op == "avg" else whole.op) if part.collective in REDUCING else None
    if part.collective not in BLOCKED:
        return _on_vectors(part, view)._replace(op=op, says=whole.record)
    return _on_blocks(part, whole, seat, view, empty)._replace(op=op, says=whole.record)


def _on_vectors(part: Inside, view: View) -> Request:
    inp, out = (view(side[0]) if side[0] is not None else None for side in (part.reads, part.writes))
    like = out if inp is None else inp
    if like is None:
        raise InternalError(f"a {part.collective} of which this rank has nothing")
    if part.collective == "broadcast":
        return Request("broadcast", like, like, like, root=part.root, in_place=True)
    in_place = inp is not None and out is not None and inp.data_ptr() == out.data_ptr()
    return Request(part.collective, like, inp, out, root=part.root, in_place=in_place)


def _on_blocks(part: Inside, whole: Request, seat: int, view: View, empty: torch.Tensor) -> Request:
    def side(places: Sequence[At | None], one: bool) -> Tensors:
        if one:
            return next((view(at) for at in places if at is not None), empty)
        return [empty if at is None else view(at) for at in places]

    kind, at_root = part.collective, seat == part.root
    inp = side(part.reads, kind in ONE_IN) if at_root or kind != "scatter" else None
    out = side(part.writes, kind in ONE_OUT) if at_root or kind != "gather" else None
    extents = part.sizes if len(set(part.sizes)) > 1 else None
    return Request(kind, blank(max(part.sizes), whole.like.dtype), inp, out, root=part.root, extents=extents)


class InsideProgram:
    """A part of a call that is inside this host, ready to be run. local: the group of the ranks of this host."""

    def __init__(self, local: Group, request: Request, algorithm: str | None) -> None:
        self._request, self._algorithm = request, algorithm
        self._inp, *kept_inp = kernel_address(request.inp)
        self._out, *kept_out = kernel_address(request.out)
        self._kept = kept_inp, kept_out
        self._usual = self._plan(local)

    def run(self, local: Group, here: Sequence[int]) -> Iterator[int]:
        """Run it; yields outcomes, see `engine.compile.program`. here: the ranks of this host in the call."""
        differed = False
        with local.lock:
            plan = self._in_turn(local) if local.mixed else self._usual
            while status := local.run(plan.address, self._inp, self._out, local.state):
                seat = status >> 8 & 0xFFFF
                if status & 0xFF == FAILED and seat == local.rank:
                    local.host.begin_again()
                    local.host.cross_no_more()
                    stage_private(local)
                    self._usual = plan = self._plan(local)
                elif _differs(local, plan):
                    if differed:
                        raise InternalError(f"ranks of one host make {plan.record} in different ways")
                    differed = True
                    local.host.skip_call()
                    stage_for_a_while(local, plan)
                    plan = self._in_turn(local)
                else:
                    yield (WAITING if status & 0xFF == DISAGREE else status & ~0xFFFF00) | here[seat] << 8

    def _plan(self, local: Group, *, staged: bool = False) -> CallPlan:
        request = self._request
        return make_plan(local, request, request.inp, request.out, self._algorithm, staged=staged)

    def _in_turn(self, local: Group) -> CallPlan:
        return self._plan(local, staged=True) if takes_turn(local, self._usual) else self._usual


def _differs(local: Group, plan: CallPlan) -> bool:
    """Has a rank entered this part, which this rank has entered, with another program?"""
    host, number = local.host, local.host.call_number
    if not host.at_gate(plan.gate_row) or host.signature(local.rank, number) != plan.signature:
        return False
    theirs = [host.signature(rank, number) for rank in range(local.size) if host.entered(rank) >= number]
    return any(signature not in (0, plan.signature) for signature in theirs)  # 0: it has given the call up
