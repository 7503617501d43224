"""One coalesced call: the layout of its tensors is found, then each pass is packed, run and unpacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..arguments import check_op, check_root, check_tensor, check_whole
from ..dispatch import Request, entering, known_plan, run_plan
from ..dispatch.perform import prepare, start
from ..engine.pack import mover
from ..engine.written import mark_written, needed_by_autograd
from ..errors import ArgumentError, DTypeError
from ..membership.group import Group
from ..ops import CustomOp
from ..work import Work
from .apart import overlap
from .layout import PART, Layout, Pass, Table, known_layout, make_layout

__all__ = ["Call", "make"]

_data_ptr = torch.Tensor.data_ptr


@dataclass
class Call:
    """A call on lists of tensors.

    names: of the two arguments. parts: what a rank gives or gets for itself; wholes: for each the parts of all ranks,
    where there are such tensors. gives, gets: PART or WHOLE; None where this rank gives or gets nothing.
    """

    collective: str
    names: tuple[str, ...]
    parts: Sequence[torch.Tensor]
    wholes: Sequence[torch.Tensor] = ()
    gives: int | None = None
    gets: int | None = None
    op: Any = None
    src: int = 0

    def argument(self, k: int) -> str:
        """What the caller knows a tensor by, of parts and wholes in a row."""
        whole, place = divmod(k, len(self.parts))
        return f"{self.names[whole]}[{place}]"

    def written(self) -> range:
        """The places of the tensors that are written."""
        count = len(self.parts)
        return range(0) if self.gets is None else range(self.gets * count, (self.gets + 1) * count)

    def flats(self, one: Pass) -> tuple[torch.Tensor, torch.Tensor]:
        """Input and output of a pass."""
        return one.flats[self.gives or PART], one.flats[self.gets or PART]


def make(group: Group, call: Call, async_op: bool, algorithm: Any, timeout_s: float | None) -> Work | None:
    """Check the call, and make it: as fast as possible where a call of this kind has been made before."""
    tensors = call.parts if not call.wholes else [*call.parts, *call.wholes]
    written = tensors[call.written().start : call.written().stop]
    known_as = (f"{call.collective}_coalesced", call.op, call.src, algorithm)
    kind = (call.collective, call.gets, len(call.parts))
    layout = known_layout(group, kind, tensors)
    if layout is not None and not async_op:
        table, flats = _addresses(tensors), [call.flats(one) for one in layout.passes]
        known = [known_plan(group, inp, out, *known_as, layout.words) for inp, out in flats]
        plans = [plan for plan in known if plan is not None]
        if len(plans) == len(flats) and table.all() and _apart(group, call, layout, table) is None:

            def run(k: int) -> None:
                inp, out = flats[k]
                run_plan(group, plans[k], inp.data_ptr(), out.data_ptr(), timeout_s)

            _carry(call, layout, tensors, table, run)
            mark_written(needed_by_autograd(written))
            return None
    with entering(group, call.collective):
        if layout is None or not _addresses(tensors).all():
            _check(group, call, tensors)
            layout = make_layout(group, kind, tensors, len(call.parts))
        table = _addresses(tensors)
        if both := _apart(group, call, layout, table):
            first, second = map(call.argument, both)
            raise ArgumentError(f"{first} and {second} share memory: each needs its own")
        requests = [_request(group, call, layout, one) for one in layout.passes]
        actions = [prepare(group, request, algorithm, timeout_s, (*known_as, layout.words)) for request in requests]

    marked = needed_by_autograd(written)

    def action(where: str | None) -> Sequence[torch.Tensor]:
        _carry(call, layout, tensors, table, lambda k: actions[k](where))
        mark_written(marked)
        return written

    work = start(group, lambda: requests[0].text, action, async_op)
    return work if async_op else None


def _check(group: Group, call: Call, tensors: Sequence[torch.Tensor]) -> None:
    if len(call.names) == 2 and len(call.parts) != len(call.wholes):
        part, whole = call.names
        raise ArgumentError(
            f"{whole}: expected as many tensors as {part}, {len(call.parts)}, but got {len(call.wholes)}"
        )
    written, count = call.written(), len(call.parts)
    for k, tensor in enumerate(tensors):
        check_tensor(call.argument(k), tensor, written=k in written)
        if tensor.is_quantized:
            raise DTypeError(f"{call.argument(k)}: quantized tensors make calls of their own; pass .int_repr()")
    for k, whole_tensor in enumerate(call.wholes):
        check_whole(call.argument(count + k), whole_tensor, call.argument(k), call.parts[k], group)


def _apart(group: Group, call: Call, layout: Layout, table: Table) -> tuple[int, int] | None:
    """Two tensors that share memory and must not, at these addresses. A part may be its whole's own block."""
    seen = table.tobytes()
    if seen == layout.apart:
        return None
    written, nbytes, count = np.zeros(len(table), bool), layout.nbytes.copy(), len(call.parts)
    written[call.written()] = True
    if call.wholes:
        own = table[:count] == table[count:] + group.rank * nbytes[:count]
        written[count:] |= written[:count] & own
        nbytes[:count][own] = 0
    both = overlap(table, nbytes, written)
    if both is None:
        layout.apart = seen
    return both


def _request(group: Group, call: Call, layout: Layout, one: Pass) -> Request:
    inp, out = call.flats(one)
    op = None if call.op is None else check_op(call.op, inp)
    if op is not None and not isinstance(op, str) and not (isinstance(op, CustomOp) and op.elementwise):
        raise ArgumentError(f"op: {op.text} does not work element by element; make a call for each tensor")
    src = check_root("src", call.src, group)
    return Request(call.collective, one.flats[PART], inp, out, op, src, in_place=inp is out, words=layout.words)


def _addresses(tensors: Sequence[torch.Tensor]) -> Table:
    return np.fromiter(map(_data_ptr, tensors), np.int64, len(tensors))


def _carry(
    call: Call, layout: Layout, tensors: Sequence[torch.Tensor], table: Table, run: Callable[[int], object]
) -> None:
    """Pack, run and unpack one pass after the other."""
    copies = {k: tensors[k].detach().resolve_conj().resolve_neg().contiguous() for k in layout.scattered}
    for k, copy in copies.items():
        table[k] = copy.data_ptr()
    parts = table.ctypes.data
    addresses = parts, parts + 8 * len(call.parts)
    move = mover()
    for k, one in enumerate(layout.passes):
        if call.gives is not None:
            move(addresses[call.gives], *one.packing[call.gives], False)
        run(k)
        if call.gets is not None:
            move(addresses[call.gets], *one.packing[call.gets], True)
    for k, copy in copies.items():
        if k in call.written():
            tensors[k].data.copy_(copy)
