"""Make a coalesced call: find the layout of its tensors, then pack, run and unpack each pass.

The layout of a list of tensors is one long vector per dtype, sent in passes through flat tensors in shared memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...base.errors import ArgumentError, DTypeError
from ...base.python import is_from_below
from ...base.records import digest
from ...base.units import seconds
from ...engine.kernels import kernel
from ...engine.tensors import (
    as_bits,
    first_overlap,
    have_strides,
    is_plain,
    make_plain,
    mark_written,
    needed_by_autograd,
    use_count,
)
from ...ranks.group.group import Group
from ...ranks.group.initialize import group_or_default
from ..arguments import check_op, check_root, check_tensor, check_whole, count_name
from ..dispatch import UNKNOWN, Action, Call, CallKey, Request, checking, plan_step
from ..dispatch.plan_cache import fits
from ..ops import PremulSum, resolve
from ..work import Work

PASS_BYTES = 1 << 20
"""The most bytes in one pass: they stay in the caches between packing, combining and unpacking."""

_ALIGN = 64
_MOST_LAYOUTS, _MOST_KINDS, _MOST_STEPS = 4, 64, 16
_NAMED = 6
"""How many tensors an error message lists."""

PART, WHOLE = 0, 1

Table = npt.NDArray[np.int64]

_data_ptr = torch.Tensor.data_ptr


@dataclass(frozen=True, eq=False)
class Pass:
    """A slice of the vector of one dtype.

    flats: the flat tensors that carry it: PART (one rank's) and WHOLE (the parts of all ranks in order; the part again
    if the call has no wholes).
    packing: the arguments of `mover` for both.
    rows: the table that the arguments refer to.
    """

    flats: tuple[torch.Tensor, torch.Tensor]
    packing: tuple[tuple[int, ...], tuple[int, ...]]
    rows: Table


@dataclass(eq=False)
class ListLayout:
    """A list of tensors without their addresses, kept so that equal lists need no new checks.

    words: the list as text, on which ranks must agree.
    scattered: the indices of tensors that are not contiguous.
    nbytes: the bytes of each contiguous tensor; 0 for the others, which may share their gaps with other tensors.
    fits: tells whether other tensors have this layout.
    tracked: does any of the tensors require grad?
    apart: the latest addresses that were found to share no memory.
    table: the same addresses, for the kernel; never written again, as a call in the background may still read it.
    steps: (call, timeout) -> the first pass's request, and an action for each pass.
    """

    words: str
    passes: tuple[Pass, ...]
    scattered: tuple[int, ...]
    nbytes: Table
    fits: Callable[..., bool]
    tracked: bool
    apart: tuple[int, ...] = ()
    table: array[int] = field(default_factory=lambda: array("q"))
    steps: dict[Any, tuple[Request, list[Action]]] = field(default_factory=dict)

    def keep(self, asked: object, steps: tuple[Request, list[Action]]) -> None:
        """Keep the steps of a call. A program may make it with ever new timeouts."""
        if len(self.steps) >= _MOST_STEPS:
            self.steps.clear()
        self.steps[asked] = steps


class _Memory:
    """What a group keeps between calls: layouts, and the memory of flat tensors."""

    def __init__(self) -> None:
        self.layouts: dict[tuple[object, ...], list[ListLayout]] = {}
        self.pieces: dict[tuple[str, int], torch.Tensor] = {}

    def flat(self, group: Group, what: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat tensor, in shared memory if there is room. Calls of one purpose and size share it, one at a time."""
        nbytes = count * dtype.itemsize
        room = max(4096, 1 << (nbytes - 1).bit_length()) if nbytes else 0
        if (what, room) not in self.pieces:
            self.pieces[what, room] = group.buffer(room, torch.uint8)
        return self.pieces[what, room][:nbytes].view(dtype)


def known_layout(group: Group, call: ListCall, tensors: Sequence[Any]) -> ListLayout | None:
    """The layout of an earlier list of this kind with the same dtypes, shapes and strides; None if there is none."""
    memory: _Memory | None = group.kept.get(_Memory)
    if memory is None:
        return None
    layouts = memory.layouts.get((*call.kind, len(tensors)))
    if layouts is None or not have_strides(tensors):
        return None
    return next((layout for layout in layouts if layout.fits(*tensors)), None)


def make_layout(group: Group, call: ListCall, tensors: Sequence[torch.Tensor]) -> ListLayout:
    """The layout of the call's checked tensors."""
    memory = group.kept.setdefault(_Memory, _Memory())
    parts, count = call.parts, len(call.parts)
    names = [count_name(tensor) for tensor in parts]
    words = f"{count} tensors: {' '.join(names[:_NAMED])}"
    if count > _NAMED:
        words += f" ... {digest(names):016x}"
    passes: list[Pass] = []
    for dtype in dict.fromkeys(tensor.dtype for tensor in parts) or [torch.int32]:
        mine = [k for k in range(count) if parts[k].dtype is dtype]
        rows = np.array([(k, parts[k].nbytes) for k in mine], np.int64).reshape(-1, 2)
        passes += _cut(group, memory, dtype, rows, group.size if len(tensors) > count else 0)
    # Without any elements there is one pass, so that the ranks still make a call and agree on it.
    layout = ListLayout(
        words,
        tuple([one for one in passes if one.flats[PART].numel()] or passes[:1]),
        tuple(k for k, tensor in enumerate(tensors) if not is_plain(tensor)),
        np.array([tensor.nbytes if is_plain(tensor) else 0 for tensor in tensors], np.int64),
        fits(tensors),
        any(tensor.requires_grad for tensor in tensors),
    )
    if len(memory.layouts) >= _MOST_KINDS:
        memory.layouts.clear()
    layouts = memory.layouts.setdefault((*call.kind, len(tensors)), [])
    layouts.insert(0, layout)
    del layouts[_MOST_LAYOUTS:]
    return layout


def _cut(group: Group, memory: _Memory, dtype: torch.dtype, rows: Table, blocks: int) -> list[Pass]:
    """The passes of the tensors of one dtype, at least one. blocks: parts in a whole; 0 if there are no wholes."""
    item, total = dtype.itemsize, int(rows[:, 1].sum())
    step = max(1, PASS_BYTES // (max(1, blocks) * item) // _ALIGN) * _ALIGN * item
    passes = []
    for first in range(0, max(1, total), step):
        last = min(total, first + step)
        count = (last - first) // item
        part = whole = memory.flat(group, "part", count, dtype)
        if blocks:
            whole = memory.flat(group, "whole", count * blocks, dtype)
        where, nbytes = (rows.ctypes.data, len(rows), first, last), last - first
        packing = (*where, part.data_ptr(), nbytes, 1), (*where, whole.data_ptr(), nbytes, max(1, blocks))
        passes.append(Pass((part, whole), packing, rows))
    return passes


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

    @property
    def kind(self) -> tuple[object, ...]:
        """Lists of one kind may have one layout."""
        return self.collective, self.gets, len(self.parts)

    def key(self, algorithm: Any) -> CallKey:
        """The call as `Call` names it."""
        return f"{self.collective}_coalesced", self.op, self.src, algorithm

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
    """Check the call and make it."""
    if (known := make_known(call, group, async_op, algorithm, timeout_s)) is not UNKNOWN:
        return known  # type: ignore[no-any-return]
    what = call.key(algorithm)
    with Call(what, group, async_op, timeout_s) as made:
        tensors = [*call.parts, *call.wholes]
        timeout_s = None if timeout_s is None else seconds(timeout_s)
        _check(made.group, call, tensors)
        layout = known_layout(made.group, call, tensors) or make_layout(made.group, call, tensors)
        if both := _place(made.group, call, layout, tuple(map(_data_ptr, tensors))):
            first, second = map(call.argument, both)
            raise ArgumentError(f"{first} and {second} share memory: each needs its own")
        requests = [_request(made.group, call, layout, one) for one in layout.passes]
        steps = requests[0], [plan_step(made.how, request) for request in requests]
        layout.keep((what, timeout_s), steps)
        made.request, made.action = steps[0], _action(made.group, call, layout, tensors, steps[1])
    work: Work[Sequence[torch.Tensor]] | None = made.run()
    return work


def make_known(call: ListCall, group: Group | None, async_op: bool, algorithm: Any, timeout_s: float | None) -> Any:
    """Make the call, if one like it has been planned before, or return UNKNOWN: it must be checked and planned."""
    group = group_or_default(group)
    group.check_usable()
    tensors = [*call.parts, *call.wholes]
    layout = known_layout(group, call, tensors)
    if layout is None or not (timeout_s is None or timeout_s.__class__ in (float, int)):
        return UNKNOWN
    what = call.key(algorithm)
    try:
        steps, addresses = layout.steps[what, timeout_s], tuple(map(_data_ptr, tensors))
    except (KeyError, RuntimeError, TypeError) as error:
        if is_from_below(error):
            with checking(group, what[0]):
                raise
        return UNKNOWN
    if addresses != layout.apart and (0 in addresses or _place(group, call, layout, addresses)):
        return UNKNOWN
    action = _action(group, call, layout, tensors, steps[1])
    if not async_op and (group.worker is None or not group.worker.busy):
        action(None)
        return None
    with Call(what, group, async_op, timeout_s) as made:
        made.request, made.action = steps[0], action
    return made.run()


def _action(
    group: Group, call: ListCall, layout: ListLayout, tensors: Sequence[torch.Tensor], actions: list[Action]
) -> Action:
    """Makes the call, once. Reads the grad mode: see `needed_by_autograd`."""
    written, table = tensors[call.written().start : call.written().stop], layout.table
    op = None if call.op is None else resolve(call.op)
    factor = op.factor if isinstance(op, PremulSum) else None
    held = layout.tracked or max(map(use_count, written), default=0) > 1
    marked = needed_by_autograd(written) if held else []

    def action(where: str | None) -> Sequence[torch.Tensor]:
        _carry(group, call, layout, tensors, table, factor, lambda k: actions[k](where))
        mark_written(marked)
        return written

    return action


def _place(group: Group, call: ListCall, layout: ListLayout, addresses: tuple[int, ...]) -> tuple[int, int] | None:
    """Give the layout the tensors' addresses. Two tensors that share memory and must not; None if there are none."""
    both = _overlap(group, call, layout, np.array(addresses, np.int64))
    if both is None:
        layout.apart, layout.table = addresses, array("q", addresses)
    return both


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
    src = check_root("src", call.src, group)
    return Request(call.collective, one.flats[PART], inp, out, op, src, in_place=inp is out, words=words)


def _carry(
    group: Group,
    call: ListCall,
    layout: ListLayout,
    tensors: Sequence[torch.Tensor],
    table: array[int],
    factor: float | None,
    run: Callable[[int], object],
) -> None:
    """Pack, run and unpack each pass in turn. table: the addresses of the tensors. factor: of `premul_sum`."""
    with checking(group, f"{call.collective}_coalesced") as steps:
        copies = {k: make_plain(tensors[k]).detach() for k in layout.scattered}
        if copies:
            table = array("q", table)
            for k, copy in copies.items():
                table[k] = copy.data_ptr()
        parts, _ = table.buffer_info()
        addresses = parts, parts + 8 * len(call.parts)
        move = kernel("pack.move")
        for k, one in enumerate(layout.passes):
            if call.gives is not None:
                move(addresses[call.gives], *one.packing[call.gives], False)
            if factor is not None:
                with torch.inference_mode():
                    call.flats(one)[0].mul_(factor)
            if one is layout.passes[-1]:
                steps.last = group.host.call_number
            run(k)
            if call.gets is not None:
                move(addresses[call.gets], *one.packing[call.gets], True)
    for k, copy in copies.items():
        if k in call.written():
            as_bits(tensors[k].data).copy_(as_bits(copy))
