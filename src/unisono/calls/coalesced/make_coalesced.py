"""Make a coalesced call: find the layout of its tensors, then pack, run and unpack each pass."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...base.errors import ArgumentError, DTypeError
from ...engine.kernels import kernel
from ...engine.reducers import CustomOp
from ...engine.tensors import as_bits, first_overlap, make_plain, mark_written, needed_by_autograd, use_count
from ...ranks.group.group import Group
from ..arguments import check_op, check_root, check_tensor, check_whole
from ..dispatch import Call, Request, plan_step
from ..ops import PremulSum, resolve
from ..work import Work
from .list_layout import PART, ListLayout, Pass, Table, known_layout, make_layout

_data_ptr = torch.Tensor.data_ptr


@dataclass
class ListCall:
    """A call on lists of tensors.

    names: the names of the arguments.
    parts: one rank's tensors.
    wholes: for each part a tensor for the parts of all ranks, if the call has them.
    gives: PART or WHOLE: the tensors that this rank reads, or None.
    gets: PART or WHOLE: the tensors that this rank writes, or None.
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
        """The name of tensor k, counted over parts and then wholes, such as `inputs[2]`."""
        whole, place = divmod(k, len(self.parts))
        return f"{self.names[whole]}[{place}]"

    def written(self) -> range:
        """The indices of the tensors that are written, counted over parts and then wholes."""
        count = len(self.parts)
        return range(0) if self.gets is None else range(self.gets * count, (self.gets + 1) * count)

    def flats(self, one: Pass) -> tuple[torch.Tensor, torch.Tensor]:
        """Input and output of a pass."""
        return one.flats[self.gives or PART], one.flats[self.gets or PART]


def make(
    call: ListCall, group: Group | None, async_op: bool, algorithm: Any, timeout_s: float | None
) -> Work[Sequence[torch.Tensor]] | None:
    """Check the call and make it. A list with a known layout is not checked or planned again."""
    what = f"{call.collective}_coalesced", call.op, call.src, algorithm
    with Call(what, group, async_op, timeout_s) as made:
        group, tensors = made.group, [*call.parts, *call.wholes]
        kind = (call.collective, call.gets, len(call.parts))
        layout = known_layout(group, kind, tensors)
        addresses = None if layout is None else array("q", map(_data_ptr, tensors))
        if layout is None or addresses is None or addresses.tobytes() != layout.apart:
            if layout is None or addresses is None or 0 in addresses:
                _check(group, call, tensors)
                layout = make_layout(group, kind, tensors, len(call.parts))
                addresses = array("q", map(_data_ptr, tensors))
            if both := _overlap(group, call, layout, np.array(addresses)):
                first, second = map(call.argument, both)
                raise ArgumentError(f"{first} and {second} share memory: each needs its own")
            layout.apart = addresses.tobytes()
        op = None if call.op is None else resolve(call.op)
        factor = op.factor if isinstance(op, PremulSum) else None
        steps = layout.steps.get((what, timeout_s))
        if steps is None:
            requests = [_request(group, call, layout, one) for one in layout.passes]
            steps = requests[0], [plan_step(made.how, request) for request in requests]
            layout.keep((what, timeout_s), steps)
        made.request, actions = steps

    written = tensors[call.written().start : call.written().stop]
    held = layout.tracked or max(map(use_count, written), default=0) > 1
    marked = needed_by_autograd(written) if held else []

    def action(where: str | None) -> Sequence[torch.Tensor]:
        _carry(call, layout, tensors, addresses, factor, lambda k: actions[k](where))
        mark_written(marked)
        return written

    made.action = action
    work: Work[Sequence[torch.Tensor]] | None = made.run()
    return work


def _check(group: Group, call: ListCall, tensors: Sequence[torch.Tensor]) -> None:
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


def _overlap(group: Group, call: ListCall, layout: ListLayout, table: Table) -> tuple[int, int] | None:
    """Two tensors that share memory and must not; None if there are none. A part may be its whole's own block."""
    written, nbytes, count = np.zeros(len(table), bool), layout.nbytes.copy(), len(call.parts)
    written[call.written()] = True
    if call.wholes:
        own = table[:count] == table[count:] + group.rank * nbytes[:count]
        written[count:] |= written[:count] & own
        nbytes[:count][own] = 0
    return first_overlap(table, nbytes, written)


def _request(group: Group, call: ListCall, layout: ListLayout, one: Pass) -> Request:
    inp, out = call.flats(one)
    op, words = None if call.op is None else check_op(call.op, inp), layout.words
    if isinstance(op, PremulSum):
        op, words = "sum", f"{words}, premultiplied"
    if isinstance(op, CustomOp) and not op.elementwise:
        raise ArgumentError(f"op: {op.text} does not work element by element; make a call for each tensor")
    src = check_root("src", call.src, group)
    return Request(call.collective, one.flats[PART], inp, out, op, src, in_place=inp is out, words=words)


def _carry(
    call: ListCall,
    layout: ListLayout,
    tensors: Sequence[torch.Tensor],
    table: array[int],
    factor: float | None,
    run: Callable[[int], object],
) -> None:
    """Pack, run and unpack each pass in turn. table: the addresses of the tensors. factor: of `premul_sum`."""
    copies = {k: make_plain(tensors[k]).detach() for k in layout.scattered}
    for k, copy in copies.items():
        table[k] = copy.data_ptr()
    parts, _ = table.buffer_info()
    addresses = parts, parts + 8 * len(call.parts)
    move = kernel("pack.move")
    for k, one in enumerate(layout.passes):
        if call.gives is not None:
            move(addresses[call.gives], *one.packing[call.gives], False)
        if factor is not None:
            call.flats(one)[0].mul_(factor)
        run(k)
        if call.gets is not None:
            move(addresses[call.gets], *one.packing[call.gets], True)
    for k, copy in copies.items():
        if k in call.written():
            as_bits(tensors[k].data).copy_(as_bits(copy))
