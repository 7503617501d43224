"""Checks of the arguments of calls, before anything moves. Errors name the argument."""

from collections.abc import Sequence
from itertools import combinations
from operator import index
from typing import Any

import torch

from ..base.errors import ArgumentError, DTypeError
from ..base.records import digest
from ..base.units import integer
from ..engine.reducers import CustomOp
from ..engine.tensors import check_is_tensor, check_known, dtype_name, overlaps_itself, share_memory
from ..ranks.group.group import Group
from .ops import PremulSum, check_op_dtype, resolve


def shape_name(tensor: torch.Tensor) -> str:
    """`float32[2, 3]`."""
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"


def count_name(tensor: torch.Tensor) -> str:
    """`float32[6]` for six elements in any shape; for quantized tensors with the scale. Ranks must agree on this."""
    return f"{dtype_name(tensor.dtype)}[{tensor.numel()}]{scale_name(tensor)}"


def scale_name(tensor: torch.Tensor) -> str:
    """` * 0.1 + 0` for a quantized tensor, "" for others."""
    if not tensor.is_quantized:
        return ""
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return f" * {tensor.q_scale():g} + {tensor.q_zero_point()}"
    scales = f"{tensor.q_per_channel_scales().tolist()} {tensor.q_per_channel_zero_points().tolist()}"
    return f" scales {digest(scales):016x}"


_BITS = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}
"""Quantized dtypes with elements of whole bytes -> the dtypes of their bits."""


def blank(count: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor without memory, with this number of elements of this size."""
    return torch.empty(count, dtype=_BITS.get(dtype, dtype), device="meta")


def check_op(op: Any, tensor: torch.Tensor) -> str | PremulSum | CustomOp:
    """The op in the form of `calls.ops.resolve`. Raises DTypeError if it cannot combine tensors of this dtype."""
    found = resolve(op)
    check_op_dtype(found, dtype_name(tensor.dtype))
    return found


def check_tensor(argument: str, tensor: Any, *, written: bool = False) -> None:
    """Check that this is a dense CPU tensor. written: also that no two of its elements share memory."""
    check_is_tensor(argument, tensor)
    check_known(argument, tensor.dtype)
    if tensor.layout is not torch.strided:
        raise DTypeError(f"{argument}: {tensor.layout} tensors are not supported; call .to_dense() first")
    if tensor.is_meta:
        raise ArgumentError(
            f"{argument}: is on meta, and has no data: make it on the CPU (of a module: .to_empty(device='cpu'))"
        )
    if tensor.is_nested:
        raise DTypeError(f"{argument}: nested tensors are not supported; pass the tensors that .unbind() returns")
    if not tensor.is_cpu:
        raise ArgumentError(f"{argument}: is on {tensor.device}, but only CPU tensors are supported; call .cpu() first")
    if tensor.numel() and not _address(tensor):
        raise DTypeError(
            f"{argument}: this {type(tensor).__name__} has no memory of its own (of a DTensor pass .to_local(), of "
            "what a functional collective returns its .wait(); a tensor of a transformed function (torch.func), a "
            "FakeTensor or a freed tensor cannot be passed)"
        )
    if tensor.is_quantized and (tensor.dtype not in _BITS or not tensor.is_contiguous()):
        raise DTypeError(
            f"{argument}: quantized tensors must be contiguous and one of {', '.join(map(dtype_name, _BITS))}; "
            "pass .int_repr()"
        )
    if written and overlaps_itself(tensor):
        raise ArgumentError(f"{argument}: several of its elements share memory; pass .contiguous()")
    if written and (tensor.is_conj() or tensor.is_neg()):
        raise ArgumentError(f"{argument}: is a conjugate or negative view; pass .resolve_conj().resolve_neg()")


def _address(tensor: torch.Tensor) -> int:
    """The address of the tensor's elements; 0 if it has no memory."""
    try:
        return tensor.data_ptr()
    except RuntimeError:  # torch.func's tensors have no address
        return 0


def check_tensors(
    argument: str, tensors: Any, group: Group, dtype: torch.dtype | None = None, *, written: bool = False
) -> list[int]:
    """Check a list of one tensor per rank, of one dtype (`dtype`, if given). Returns their numbers of elements."""
    if not isinstance(tensors, Sequence):
        raise DTypeError(f"{argument}: expected a list of {group.size} tensors, got {type(tensors).__name__}")
    if len(tensors) != group.size:
        raise ArgumentError(f"{argument}: expected {group.size} tensors, one per rank, got {len(tensors)}")
    for rank, tensor in enumerate(tensors):
        check_tensor(f"{argument}[{rank}]", tensor, written=written)
        dtype = dtype or tensor.dtype
        if tensor.dtype != dtype:
            raise ArgumentError(
                f"{argument}[{rank}]: is {shape_name(tensor)}, but rank {group.rank} exchanges {dtype_name(dtype)}: "
                "every block has the same dtype"
            )
        if tensor.is_quantized and scale_name(tensor) != scale_name(tensors[0]):
            raise ArgumentError(f"{argument}[{rank}]: is quantized in another way than {argument}[0]; pass .int_repr()")
    if written:
        for first, second in combinations(range(len(tensors)), 2):
            if share_memory(tensors[first], tensors[second]):
                raise ArgumentError(f"{argument}[{first}] and {argument}[{second}] share memory: each needs its own")
    return [tensor.numel() for tensor in tensors]


def check_blocks(
    argument: str, tensors: Any, own_argument: str, own: torch.Tensor, group: Group, *, written: bool
) -> list[int]:
    """Check a list of one tensor per rank, this rank's like its own tensor, which may be the same memory.

    Returns the numbers of elements.
    """
    sizes = check_tensors(argument, tensors, group, own.dtype, written=written)
    check_apart(tensors, own, group.rank)
    if sizes[group.rank] != own.numel():
        raise ArgumentError(
            f"{argument}[{group.rank}]: is {shape_name(tensors[group.rank])}, but {own_argument} of rank {group.rank} "
            f"is {shape_name(own)}: both need the same number of elements"
        )
    return sizes


def check_splits(argument: str, tensor: torch.Tensor, sizes: Any, group: Group) -> list[torch.Tensor]:
    """Split a tensor into blocks of these lengths along its first dimension, one per rank; None or []: equal blocks."""
    rows = tensor.shape[0] if tensor.dim() else 0
    try:
        sizes = [index(size) for size in (() if sizes is None else sizes)]
    except TypeError:
        raise DTypeError(f"{argument}_split_sizes: expected {group.size} integers, got {sizes}") from None
    if not sizes:
        if rows % group.size:
            raise ArgumentError(
                f"{argument}: is {shape_name(tensor)}; {rows} rows cannot be split among {group.size} ranks alike: "
                f"pass {argument}_split_sizes"
            )
        sizes = [rows // group.size] * group.size
    if len(sizes) != group.size or sum(sizes) != rows or min(sizes) < 0:
        raise ArgumentError(
            f"{argument}_split_sizes: {sizes} are not {group.size} lengths with the sum {rows}, the rows of "
            f"{shape_name(tensor)} on rank {group.rank}"
        )
    return list(torch.split(tensor, sizes)) if tensor.dim() else [tensor.view(1)[:0]] * group.size


def check_list(argument: str, objects: Any, places: int | None = None) -> list[Any]:
    """Check that this is a list, of length `places` if that is given (one item per rank)."""
    if not isinstance(objects, list):
        raise DTypeError(f"{argument}: expected a list, got {type(objects).__name__}")
    if places is not None and len(objects) != places:
        raise ArgumentError(f"{argument}: expected a list of {places} places, one per rank, got {len(objects)}")
    return objects


def check_root(argument: str, root: Any, group: Group) -> int:
    rank = integer(argument, root, "a rank")
    if not 0 <= rank < group.size:
        raise ArgumentError(f"{argument}={rank}: the ranks of this group are 0 to {group.size - 1}")
    return rank


def check_rooted(
    argument: str, tensors: Any, root_argument: str, root: int, own: torch.Tensor, group: Group, *, written: bool
) -> Sequence[torch.Tensor] | None:
    """The checked list of a rooted call, which only the root passes; None on other ranks."""
    given: Sequence[torch.Tensor] | None = None if isinstance(tensors, Sequence) and not tensors else tensors
    if group.rank == root:
        if given is None:
            raise ArgumentError(f"{argument}: rank {root} is {root_argument} and must pass one tensor per rank")
        check_blocks(argument, given, "tensor", own, group, written=written)
    elif given is not None:
        raise ArgumentError(
            f"{argument}: only rank {root} ({root_argument}) passes it, but rank {group.rank} did; pass None here"
        )
    return given


def check_whole(whole_name: str, whole: torch.Tensor, part_name: str, part: torch.Tensor, group: Group) -> None:
    """Check that the whole has the size of one part per rank, and the same dtype."""
    if whole.dtype != part.dtype or whole.numel() != part.numel() * group.size:
        raise ArgumentError(
            f"{whole_name}: is {shape_name(whole)}, but {part_name} is {shape_name(part)} and there are {group.size} "
            f"ranks: {whole_name} needs the same dtype and {part.numel() * group.size} elements"
        )


def check_apart(blocks: Sequence[torch.Tensor], tensor: torch.Tensor, own: int | None, offset: int = 0) -> None:
    """Check that a tensor shares no memory with blocks; but blocks[own], from `offset` bytes on, may be the tensor.

    Also that they are quantized alike.
    """
    for k, block in enumerate(blocks):
        if tensor.is_quantized and scale_name(block) != scale_name(tensor):
            raise ArgumentError("an input and an output are quantized in different ways; pass .int_repr()")
        if share_memory(block, tensor) and not (k == own and block.data_ptr() + offset == tensor.data_ptr()):
            raise ArgumentError("an input and an output share memory: give the output its own memory")
