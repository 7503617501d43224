"""The layout of a list of tensors: one long vector per dtype, sent in passes through flat tensors in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...base.records import digest
from ...engine.tensors import have_strides, is_plain
from ...ranks.group.group import Group
from ..arguments import count_name
from ..dispatch import Action, Request

try:  # torch.compile's check that tensors still have the same dtypes, shapes, strides and kinds
    from torch._C._dynamo import guards
except ImportError:  # then every call checks its tensors one by one
    guards = None  # type: ignore[assignment]

PASS_BYTES = 1 << 20
"""The most bytes in one pass: they stay in the caches between packing, combining and unpacking."""

_ALIGN = 64
_MOST_ALIKE, _MOST_KINDS, _MOST_STEPS = 4, 64, 16
_NAMED = 6
"""How many tensors an error message lists."""

PART, WHOLE = 0, 1

Table = npt.NDArray[np.int64]


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
    alike: tells whether other tensors have this layout.
    tracked: does any of the tensors require grad?
    apart: the latest addresses that were found to share no memory.
    steps: (call, timeout) -> the first pass's request, and an action for each pass.
    """

    words: str
    passes: tuple[Pass, ...]
    scattered: tuple[int, ...]
    nbytes: Table
    alike: Callable[..., bool] | None
    tracked: bool
    apart: bytes = b""
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


def known_layout(group: Group, kind: tuple[object, ...], tensors: Sequence[Any]) -> ListLayout | None:
    """The layout of an earlier list of this kind with the same dtypes, shapes and strides; None if there is none."""
    memory: _Memory | None = group.kept.get(_Memory)
    if memory is None:
        return None
    layouts = memory.layouts.get((*kind, len(tensors)))
    if layouts is None or not have_strides(tensors):
        return None
    for layout in layouts:
        if layout.alike is not None and layout.alike(*tensors):
            return layout
    return None


def make_layout(group: Group, kind: tuple[object, ...], tensors: Sequence[torch.Tensor], count: int) -> ListLayout:
    """The layout of checked tensors: `count` parts, then their wholes, if the call has wholes."""
    memory: _Memory = group.kept.setdefault(_Memory, _Memory())
    parts = tensors[:count]
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
        _alike(tensors),
        any(tensor.requires_grad for tensor in tensors),
    )
    if len(memory.layouts) >= _MOST_KINDS:
        memory.layouts.clear()
    alike = memory.layouts.setdefault((*kind, len(tensors)), [])
    alike.insert(0, layout)
    del alike[_MOST_ALIKE:]
    return layout


def _alike(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """A function that tells whether other tensors differ from these in addresses and values only."""
    make: Any = getattr(guards, "TensorGuards", None)
    return make(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check if make else None


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
