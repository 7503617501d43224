"""Coalesced calls: many tensors in one call. This costs far less than one call each. To look at the tensors and to
pack them takes some 20 µs, though: fewer than some thirty short tensors take less in calls of their own.

The tensors of each dtype, one behind the other, are a long vector. It is sent a MiB at a time: pack, make an ordinary
call on the packed tensor, unpack. `models.flatten_` places tensors side by side in shared memory, where calls pack
nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from ..base.errors import ArgumentError, DTypeError
from ..base.records import digest
from ..engine.kernels import kernel
from ..engine.tensors import (
    EXPORTER,
    as_bits,
    dtype_name,
    first_overlap,
    is_plain,
    make_plain,
    mark_written,
    needed_by_autograd,
    use_count,
)
from ..ranks.group.group import Group
from ..schedule.algorithms.catalogue import AlgorithmLike
from .arguments import blank, check_op, check_root, check_tensor, check_whole
from .dispatch import UNKNOWN, Call, Request, checking, copy, plan, shortcut
from .ops import OpLike, ReduceOp

PASS_BYTES = 1 << 20
"""The most bytes in one pass: they stay in the caches between packing, combining and unpacking."""

_ALIGN = 64
_NAMED = 6
"""How many tensors an error message lists."""

PART, WHOLE = 0, 1

_is_neg, _is_conj = torch.Tensor.is_neg, torch.Tensor.is_conj
_dtype, _requires_grad = attrgetter("dtype"), attrgetter("requires_grad")


def all_reduce_coalesced(
    tensors: Iterable[torch.Tensor],
    op: OpLike = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Combine many tensors at once: the result for `tensors[k]` of all ranks replaces `tensors[k]` on every rank.

    Makes one all_reduce for each dtype and MiB.

    Args:
        tensors: CPU tensors of any shapes, dtypes and layouts that share no memory. In this and the other coalesced
            calls every rank passes the same dtypes and numbers of elements in the same order.
        op, group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.
    """
    with Call(("all_reduce_coalesced", op, 0, algorithm), group, async_op, timeout_s) as call:
        _plan(call, {"tensors": tensors}, PART, PART)
    return call.run()


def broadcast_coalesced(
    tensors: Iterable[torch.Tensor],
    src: int,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Copy many tensors at once from rank `src` to all ranks, in place. Makes one broadcast for each dtype and MiB.

    Args:
        tensors: As in `all_reduce_coalesced`.
        src: The rank whose tensors are copied.
        group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.
    """
    with Call(("broadcast_coalesced", None, src, algorithm), group, async_op, timeout_s) as call:
        _plan(call, {"tensors": tensors}, *((PART, None) if call.group.rank == src else (None, PART)))
    return call.run()


def all_gather_coalesced(
    outputs: Iterable[torch.Tensor],
    inputs: Iterable[torch.Tensor],
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Concatenate many tensors at once: `inputs[k]` of all ranks, in rank order, go to `outputs[k]` of every rank.

    Args:
        outputs: For each input of n elements, a tensor of p·n elements of the same dtype.
        inputs: CPU tensors of any shapes, dtypes and layouts.
        group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.
    """
    with Call(("all_gather_coalesced", None, 0, algorithm), group, async_op, timeout_s) as call:
        _plan(call, {"inputs": inputs, "outputs": outputs}, PART, WHOLE)
    return call.run()


def reduce_scatter_coalesced(
    outputs: Iterable[torch.Tensor],
    inputs: Iterable[torch.Tensor],
    op: OpLike = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Combine many tensors at once: block r of the combination of all `inputs[k]` goes to `outputs[k]` of rank r.

    Args:
        outputs: CPU tensors of any shapes, dtypes and layouts.
        inputs: For each output of n elements, a tensor of p·n elements of the same dtype.
        op, group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.
    """
    with Call(("reduce_scatter_coalesced", op, 0, algorithm), group, async_op, timeout_s) as call:
        _plan(call, {"outputs": outputs, "inputs": inputs}, WHOLE, PART)
    return call.run()


class _Pass(NamedTuple):
    """Bytes first to last - 1 of the vector of one dtype.

    like: a tensor without memory that has their dtype and number of elements.
    rows: of each tensor of the vector its index, and its bytes.
    """

    like: torch.Tensor
    rows: array[int]
    first: int
    last: int


@lru_cache(maxsize=256)
def _layout(dtypes: tuple[torch.dtype, ...], nbytes: bytes, count: int, blocks: int) -> tuple[str, list[_Pass], int]:
    """The layout of `count` parts, and perhaps a whole of `blocks` parts for each.

    Returns the parts as text, on which ranks must agree; the passes; and the index of the first whole that has not the
    dtype or the size of its parts, or -1.
    """
    sizes, passes = np.frombuffer(nbytes, np.int64).tolist(), []
    wholes = range(count, len(sizes))
    misfit = next((k for k in wholes if (dtypes[k], sizes[k]) != (dtypes[k - count], blocks * sizes[k - count])), -1)
    names = [f"{dtype_name(dtypes[k])}[{sizes[k] // dtypes[k].itemsize}]" for k in range(count)]
    words = f"{count} tensors: {' '.join(names[:_NAMED])}"
    if count > _NAMED:
        words += f" ... {digest(names):016x}"
    step = max(1, PASS_BYTES // max(1, blocks) // _ALIGN) * _ALIGN
    for dtype in dict.fromkeys(dtypes[:count] or [torch.int32]):  # without tensors, too, the ranks agree on a call
        rows = array("q", [word for k in range(count) if dtypes[k] is dtype for word in (k, sizes[k])])
        total, whole = sum(rows[1::2]), blank(step // dtype.itemsize, dtype)
        for first in range(0, max(1, total), step):
            last = min(total, first + step)
            like = whole if last - first == step else blank((last - first) // dtype.itemsize, dtype)
            passes.append(_Pass(like, rows, first, last))
    return words, passes, misfit


@lru_cache(maxsize=256)
def _overlap(table: bytes, odd: tuple[int, ...], count: int, gets: int | None, rank: int) -> tuple[int, int] | None:
    """Two tensors that share memory and must not; None if there are none. A part may be its whole's own block.

    table: the addresses of the tensors, then their bytes. odd: tensors that may share their gaps with others.
    """
    words = np.frombuffer(table, np.int64).tolist()
    addresses, nbytes = words[: len(words) // 2], words[len(words) // 2 :]
    for k in odd:
        nbytes[k] = 0
    written = [k // count == gets for k in range(len(addresses))]
    for part, whole in zip(range(count), range(count, len(addresses)), strict=False):
        if addresses[part] == addresses[whole] + rank * nbytes[part]:
            written[whole] |= written[part]
            nbytes[part] = 0
    return first_overlap(addresses, nbytes, written)


def _plan(call: Call, lists: Mapping[str, Any], gives: int | None, gets: int | None) -> None:
    """Check and plan a call on lists of tensors. It packs, makes the call and unpacks, pass by pass.

    lists: by the names of the arguments: the parts, one rank's tensors; and where a call has them the wholes, for each
    part a tensor for the parts of all ranks.
    gives, gets: PART or WHOLE: the tensors that this rank reads and those that it writes, or None.
    """
    _, op, src, algorithm, *_ = call.what
    group, names, given = call.group, list(lists), [_listed(argument, tensors) for argument, tensors in lists.items()]
    tensors, count, blocks = [tensor for one in given for tensor in one], len(given[0]), group.size * (len(lists) - 1)
    if len(given[-1]) != count:
        raise ArgumentError(f"{names[1]}: got {len(given[1])} tensors, expected {count}, as in {names[0]}")
    written = [] if gets is None else given[gets]

    def name(k: int) -> str:
        return f"{names[k // count]}[{k % count}]"

    table, odd = _look(tensors, count, gets, name)
    words, passes, misfit = _layout(tuple(map(_dtype, tensors)), table[len(tensors) :].tobytes(), count, blocks)
    if misfit >= 0:
        check_whole(name(misfit), tensors[misfit], name(misfit - count), tensors[misfit - count], group)
    if both := _overlap(table.tobytes(), tuple(odd), count, gets, group.rank):
        raise ArgumentError(f"{name(both[0])} and {name(both[1])} share memory. Give each its own.")
    likes = dict.fromkeys(one.like for one in passes)
    for like in likes if "reduce" in call.collective else ():
        op = check_op(op, like)
    src, collective = check_root("src", src, group), call.collective
    most = -(-max(like.nbytes for like in likes) // _ALIGN) * _ALIGN
    buffer, steps, what = group.buffer(most * (blocks + 1), torch.uint8), {}, (*call.what, words)
    known, limit_s = what in group.shortcuts and not call.async_op, call.timeout_s
    for like in likes:  # errors come before anything moves
        size = like.nbytes
        sides = [buffer[:size].view(like.dtype), buffer[most : most + size * blocks].view(like.dtype)]
        inp, out = (sides[side or PART] for side in (gives, gets))
        of = collective.removesuffix("_coalesced"), like, inp, out, op, src, inp is out
        request = Request(*of, words=words)
        steps[like] = request, None if known else plan(group, request, algorithm, limit_s, what)
    memory: list[Any] = [tensor.untyped_storage() for tensor in tensors] if call.async_op else tensors
    held = any(map(_requires_grad, written)) or max(map(use_count, written), default=0) > 1
    marked, call.record = needed_by_autograd(written) if held else (), request.record

    def move(one: _Pass, side: int | None, packed: Any, *, outward: bool) -> None:
        """Copy a pass from parts or wholes to the packed tensor, or back."""
        if side is not None:
            there, many = table.buffer_info()[0] + 8 * side * count, blocks if side == WHOLE else 1
            rows = one.rows.buffer_info()[0], len(one.rows) // 2
            kernel("pack.move")(there, *rows, one.first, one.last, packed.data_ptr(), one.like.nbytes, many, outward)

    def action(where: str | None) -> Sequence[torch.Tensor]:
        with checking(group, collective) as block:
            copies = {k: make_plain(tensor) for k, tensor in odd.items()}
            for k, plain in copies.items():
                table[k] = plain.data_ptr()
            for one in passes:
                request, make = steps[one.like]
                move(one, gives, request.inp, outward=False)
                if one is passes[-1]:
                    block.last = group.engine.call_number
                if make is None and shortcut(group, what, request.inp, request.out, limit_s) is UNKNOWN:
                    make = plan(group, request, algorithm, limit_s, what)
                if make is not None:
                    make(where)
                move(one, gets, request.out, outward=True)
        if copies:
            copy([(as_bits(odd[k]), as_bits(copies[k])) for k in copies if k // count == gets])
        mark_written(marked)
        memory.clear()  # it has lived until now
        return written

    call.action = action


def _listed(argument: str, tensors: Any) -> list[Any]:
    if isinstance(tensors, torch.Tensor | np.ndarray) or not isinstance(tensors, Iterable):
        raise DTypeError(f"{argument}: got {type(tensors).__name__}, expected a list of tensors")
    return list(tensors)


def _look(
    tensors: Sequence[Any], count: int, gets: int | None, name: Callable[[int], str]
) -> tuple[array[int], dict[int, torch.Tensor]]:
    """The addresses of tensors, then their bytes; and the tensors that are not plain, by index."""
    table, odd = array("q", bytes(16 * len(tensors))), {}
    strange = kernel("known.look")(table.buffer_info()[0], EXPORTER, *tensors)
    if strange or any(map(_is_neg, tensors)) or any(map(_is_conj, tensors)):
        for k, tensor in enumerate(tensors):
            if table[len(tensors) + k] < 0 or not is_plain(tensor):
                check_tensor(name(k), tensor, written=k // count == gets)
                if tensor.is_quantized:
                    raise DTypeError(
                        f"{name(k)}: got a quantized tensor, which cannot be in a coalesced call. Pass .int_repr(), "
                        "or make a call for this tensor alone."
                    )
                odd[k] = tensor.data  # which keeps its memory
                table[k], table[len(tensors) + k] = tensor.data_ptr(), tensor.nbytes
    return table, odd
