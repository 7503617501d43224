"""The parts of a call over several hosts that are inside one, as requests of the group of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ....base.errors import InternalError
from ....schedule import BLOCKED, ONE_IN, ONE_OUT, REDUCING
from ...arguments import blank
from ..request import Request, Tensors
from .hosts_plan import At, Inside

View = Callable[[At], torch.Tensor]
"""Finds chunks in memory."""


def inside_request(part: Inside, whole: Request, seat: int, view: View, empty: torch.Tensor) -> Request:
    """The request for a part of the call `whole`. seat: of this rank. view: finds chunks. empty: of no elements."""
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
