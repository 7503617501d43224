"""Coalesced calls: many tensors in one call. This costs far less than one call each.

The tensors of each dtype, one behind the other, are a long vector. It is sent a MiB at a time: pack, make an ordinary
call on the packed tensor, unpack. `models.flatten_` places tensors side by side in shared memory, where calls pack
nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from ..base.errors import ArgumentError, DTypeError
from ..base.records import digest
from ..base.units import seconds
from ..engine.kernels import kernel
from ..engine.tensors import (
    EXPORTER,
    Addresses,
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
from ..ranks.group.initialize import group_or_default
from ..schedule.algorithms.catalogue import AlgorithmLike
from .arguments import blank, check_op, check_root, check_tensor, check_whole
from .dispatch import UNKNOWN, Call, CallKey, Request, checking, copy, plan, shortcut
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
    """Replace tensors[k], on every rank, by the combination of all ranks' tensors[k], for each k.

    tensors: any shapes, dtypes and layouts, in place; no two may share memory. Every rank passes the same dtypes and
    numbers of elements in the same order. Makes one all_reduce per dtype and MiB.
    """
    return _make("all_reduce", {"tensors": tensors}, PART, PART, group, async_op, algorithm, timeout_s, op)


def broadcast_coalesced(
    tensors: Iterable[torch.Tensor],
    src: int,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Replace tensors[k], on every rank, by tensors[k] of rank `src`, for each k.

    tensors: as in `all_reduce_coalesced`. Makes one broadcast per dtype and MiB.
    """
    gives, gets = (PART, None) if group_or_default(group).rank == src else (None, PART)
    return _make("broadcast", {"tensors": tensors}, gives, gets, group, async_op, algorithm, timeout_s, src=src)


def all_gather_coalesced(
    outputs: Iterable[torch.Tensor],
    inputs: Iterable[torch.Tensor],
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Put inputs[k] of every rank, in rank order, into outputs[k] of every rank, for each k.

    inputs: any shapes, dtypes and layouts; read.
    outputs: for an input of n elements, p·n elements of the same dtype; written.

    Every rank passes the same dtypes and numbers of elements in the same order.
    """
    lists = {"inputs": inputs, "outputs": outputs}
    return _make("all_gather", lists, PART, WHOLE, group, async_op, algorithm, timeout_s)


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
    """Put block r of the combination of all ranks' inputs[k] into outputs[k] of each rank r, for each k.

    outputs: any shapes, dtypes and layouts; written.
    inputs: for an output of n elements, p·n elements of the same dtype; read.

    Every rank passes the same dtypes and numbers of elements in the same order.
    """
    lists = {"outputs": outputs, "inputs": inputs}
    return _make("reduce_scatter", lists, WHOLE, PART, group, async_op, algorithm, timeout_s, op)


class _Pass(NamedTuple):
    """A slice of the vector of one dtype.

    like: a tensor without memory that has the slice's dtype and number of elements.
    rows: the tensors of the vector: the index of each, and its bytes.
    cut: the arguments of `pack.move` for the slice: where the rows are, their number, first and last byte.
    """

    like: torch.Tensor
    rows: Addresses
    cut: tuple[int, int, int, int]


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
        rows = np.array([(k, sizes[k]) for k in range(count) if dtypes[k] is dtype], np.int64).reshape(-1, 2)
        total = int(rows[:, 1].sum())
        for first in range(0, max(1, total), step):
            last = min(total, first + step)
            like = blank((last - first) // dtype.itemsize, dtype)
            passes.append(_Pass(like, rows, (rows.ctypes.data, len(rows), first, last)))
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


def _plan(
    call: Call, lists: Mapping[str, Any], gives: int | None, gets: int | None, op: Any, src: Any
) -> Callable[[str | None], Sequence[torch.Tensor]]:
    """Check a call on lists of tensors. The returned action packs, makes the call and unpacks, pass by pass.

    lists: by the names of the arguments: the parts, one rank's tensors; and where a call has them the wholes, for each
    part a tensor for the parts of all ranks.
    gives, gets: PART or WHOLE: the tensors that this rank reads and those that it writes, or None.
    """
    group, names, given = call.group, list(lists), [_listed(argument, tensors) for argument, tensors in lists.items()]
    tensors, count, blocks = [tensor for one in given for tensor in one], len(given[0]), group.size * (len(lists) - 1)
    if len(given[-1]) != count:
        raise ArgumentError(f"{names[1]}: expected as many tensors as {names[0]}, {count}, but got {len(given[1])}")
    written = [] if gets is None else given[gets]

    def name(k: int) -> str:
        return f"{names[k // count]}[{k % count}]"

    table, odd = _look(tensors, count, gets, name)
    words, passes, misfit = _layout(tuple(map(_dtype, tensors)), table[len(tensors) :].tobytes(), count, blocks)
    if misfit >= 0:
        check_whole(name(misfit), tensors[misfit], name(misfit - count), tensors[misfit - count], group)
    if both := _overlap(table.tobytes(), tuple(odd), count, gets, group.rank):
        raise ArgumentError(f"{name(both[0])} and {name(both[1])} share memory: each needs its own")
    for one in passes if op is not None else ():
        op = check_op(op, one.like)
    src, collective = check_root("src", src, group), call.collective.removesuffix("_coalesced")
    asks = Request(collective, passes[0].like, None, None, op, src, words=words)
    known_as: CallKey = call.collective, (op, words), src, call.algorithm
    limit_s = None if call.timeout_s is None else seconds(call.timeout_s)
    memory = [tensor.untyped_storage() for tensor in tensors] if call.async_op else []
    held = any(map(_requires_grad, written)) or max(map(use_count, written), default=0) > 1
    marked, call.record = needed_by_autograd(written) if held else (), asks.record

    def memory_for_passes() -> torch.Tensor:
        """Memory for all passes in turn: of an earlier call, if it is large enough."""
        nbytes = max(one.like.nbytes for one in passes) * (blocks + 1) + _ALIGN
        with suppress(IndexError):
            spare = group.spare.pop()
            if spare.nbytes >= nbytes:
                return spare
        return group.buffer(nbytes, torch.uint8)

    def step(one: _Pass, buffer: torch.Tensor) -> Request:
        """The call on a pass, packed into this memory."""
        like, size = one.like, one.like.nbytes
        part = whole = buffer[:size].view(like.dtype)
        if blocks:
            first = -(-size // _ALIGN) * _ALIGN
            whole = buffer[first : first + size * blocks].view(like.dtype)
        inp, out = (whole if side == WHOLE else part for side in (gives, gets))
        return asks._replace(like=like, inp=inp, out=out, in_place=inp is out)

    def move(one: _Pass, side: int | None, packed: Any, *, outward: bool) -> None:
        """Copy a pass from parts or wholes to the packed tensor, or back."""
        if side is not None:
            there, many = table.buffer_info()[0] + 8 * side * count, blocks if side == WHOLE else 1
            kernel("pack.move")(there, *one.cut, packed.data_ptr(), one.like.nbytes, many, outward)

    def action(where: str | None) -> Sequence[torch.Tensor]:
        with checking(group, known_as[0]) as steps:
            copies = {k: make_plain(tensor) for k, tensor in odd.items()}
            for k, plain in copies.items():
                table[k] = plain.data_ptr()
            buffer = memory_for_passes()
            for one in passes:
                request = step(one, buffer)
                move(one, gives, request.inp, outward=False)
                if one is passes[-1]:
                    steps.last = group.engine.call_number
                if shortcut(group, known_as, request.inp, request.out, limit_s) is UNKNOWN:
                    plan(group, request, known_as[3], limit_s, known_as)(where)
                move(one, gets, request.out, outward=True)
        group.spare = [buffer]
        if copies:
            copy([(as_bits(odd[k]), as_bits(copies[k])) for k in copies if k // count == gets])
        mark_written(marked)
        memory.clear()  # it has lived until now
        return written

    if known_as not in group.shortcuts:
        buffer = memory_for_passes()
        for one in passes:  # errors come before anything moves
            plan(group, step(one, buffer), call.algorithm, limit_s, known_as)
        group.spare = [buffer]
    return action


def _make(
    collective: str, lists: Mapping[str, Any], gives: int | None, gets: int | None, group: Group | None,
    async_op: bool, algorithm: Any, timeout_s: float | None, op: Any = None, src: int = 0,
) -> Any:  # fmt: skip
    """Check the call and make it. See `_plan`."""
    with Call((f"{collective}_coalesced", op, src, algorithm), group, async_op, timeout_s) as call:
        call.action = _plan(call, lists, gives, gets, op, src)
    return call.run()


def _listed(argument: str, tensors: Any) -> list[Any]:
    if isinstance(tensors, torch.Tensor | np.ndarray) or not isinstance(tensors, Iterable):
        raise DTypeError(f"{argument}: expected a list of tensors, got {type(tensors).__name__}")
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
                    raise DTypeError(f"{name(k)}: quantized tensors make calls of their own; pass .int_repr()")
                odd[k] = tensor.data  # which keeps its memory
                table[k], table[len(tensors) + k] = tensor.data_ptr(), tensor.nbytes
    return table, odd
