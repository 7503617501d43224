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
        raise DTypeError(f"{argument}: got a {tensor.layout} tensor, expected a dense one. Call .to_dense() first.")
    if tensor.is_meta:
        raise ArgumentError(
            f"{argument}: got a meta tensor, which has no data. Create it on the CPU; for a module, use "
            ".to_empty(device='cpu')."
        )
    if tensor.is_nested:
        raise DTypeError(
            f"{argument}: got a nested tensor, expected a dense one. Pass the tensors that .unbind() returns."
        )
    if not tensor.is_cpu:
        raise ArgumentError(f"{argument}: got a tensor on {tensor.device}, expected one on the CPU. Call .cpu() first.")
    if tensor.numel() and not _address(tensor):
        raise DTypeError(
            f"{argument}: got a {type(tensor).__name__} without memory of its own. Pass .to_local() of a DTensor, or "
            ".wait() of the result of a functional collective; fake, freed and torch.func tensors cannot be passed."
        )
    if tensor.is_quantized and (tensor.dtype not in _BITS or not tensor.is_contiguous()):
        raise DTypeError(
            f"{argument}: got an unsupported quantized tensor, expected a contiguous one of "
            f"{', '.join(map(dtype_name, _BITS))}. Pass .int_repr()."
        )
    if written and overlaps_itself(tensor):
        raise ArgumentError(f"{argument}: several elements share memory. Pass .contiguous().")
    if written and (tensor.is_conj() or tensor.is_neg()):
        raise ArgumentError(f"{argument}: got a conjugate or negative view. Pass .resolve_conj().resolve_neg().")


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
        raise DTypeError(f"{argument}: got {type(tensors).__name__}, expected a list of {group.size} tensors")
    if len(tensors) != group.size:
        raise ArgumentError(f"{argument}: got {len(tensors)} tensors, expected {group.size}, one per rank")
    for rank, tensor in enumerate(tensors):
        check_tensor(f"{argument}[{rank}]", tensor, written=written)
        dtype = dtype or tensor.dtype
        if tensor.dtype != dtype:
            raise ArgumentError(
                f"{argument}[{rank}]: got {shape_name(tensor)}, expected {dtype_name(dtype)}, as in the other blocks "
                f"of rank {group.rank}"
            )
        if tensor.is_quantized and scale_name(tensor) != scale_name(tensors[0]):
            raise ArgumentError(
                f"{argument}[{rank}]: its quantization differs from that of {argument}[0]. Pass .int_repr()."
            )
    if written:
        for first, second in combinations(range(len(tensors)), 2):
            if share_memory(tensors[first], tensors[second]):
                raise ArgumentError(f"{argument}[{first}] and {argument}[{second}] share memory. Give each its own.")
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
            f"{argument}[{group.rank}]: got {shape_name(tensors[group.rank])}, expected as many elements as "
            f"{own_argument} of rank {group.rank}, which is {shape_name(own)}"
        )
    return sizes


def check_splits(argument: str, tensor: torch.Tensor, sizes: Any, group: Group) -> list[torch.Tensor]:
    """Split a tensor into blocks of these lengths along its first dimension, one per rank; None or []: equal blocks."""
    rows = tensor.shape[0] if tensor.dim() else 0
    try:
        sizes = [index(size) for size in (() if sizes is None else sizes)]
    except TypeError:
        raise DTypeError(f"{argument}_split_sizes: got {sizes}, expected {group.size} integers") from None
    if not sizes:
        if rows % group.size:
            raise ArgumentError(
                f"{argument}: got {shape_name(tensor)}, whose {rows} rows cannot be split equally among {group.size} "
                f"ranks. Pass {argument}_split_sizes."
            )
        sizes = [rows // group.size] * group.size
    if len(sizes) != group.size or sum(sizes) != rows or min(sizes) < 0:
        raise ArgumentError(
            f"{argument}_split_sizes: got {sizes}, expected {group.size} lengths with the sum {rows}, the rows of "
            f"{shape_name(tensor)} on rank {group.rank}"
        )
    return list(torch.split(tensor, sizes)) if tensor.dim() else [tensor.view(1)[:0]] * group.size


def check_list(argument: str, objects: Any, places: int | None = None) -> list[Any]:
    """Check that this is a list, of length `places` if that is given (one item per rank)."""
    if not isinstance(objects, list):
        raise DTypeError(f"{argument}: got {type(objects).__name__}, expected a list")
    if places is not None and len(objects) != places:
        raise ArgumentError(f"{argument}: got {len(objects)} items, expected {places}, one per rank")
    return objects


def check_root(argument: str, root: Any, group: Group) -> int:
    rank = integer(argument, root, "a rank")
    if not 0 <= rank < group.size:
        raise ArgumentError(f"{argument}: got {rank}, expected a rank of this group, 0 to {group.size - 1}")
    return rank


def check_rooted(
    argument: str, tensors: Any, root_argument: str, root: int, own: torch.Tensor, group: Group, *, written: bool
) -> Sequence[torch.Tensor] | None:
    """The checked list of a rooted call, which only the root passes; None on other ranks."""
    given: Sequence[torch.Tensor] | None = None if isinstance(tensors, Sequence) and not tensors else tensors
    if group.rank == root:
        if given is None:
            raise ArgumentError(
                f"{argument}: got None on rank {root}, the {root_argument}. Pass one tensor per rank there."
            )
        check_blocks(argument, given, "tensor", own, group, written=written)
    elif given is not None:
        raise ArgumentError(
            f"{argument}: got a list on rank {group.rank}, expected it on rank {root} ({root_argument}) only. Pass "
            "None here."
        )
    return given


def check_whole(whole_name: str, whole: torch.Tensor, part_name: str, part: torch.Tensor, group: Group) -> None:
    """Check that the whole has the size of one part per rank, and the same dtype."""
    if whole.dtype != part.dtype or whole.numel() != part.numel() * group.size:
        raise ArgumentError(
            f"{whole_name}: got {shape_name(whole)}, expected the dtype of {part_name}, {shape_name(part)}, and "
            f"{part.numel() * group.size} elements for {group.size} ranks"
        )


def check_apart(blocks: Sequence[torch.Tensor], tensor: torch.Tensor, own: int | None, offset: int = 0) -> None:
    """Check that a tensor shares no memory with blocks; but blocks[own], from `offset` bytes on, may be the tensor.

    Also that they are quantized alike.
    """
    for k, block in enumerate(blocks):
        if tensor.is_quantized and scale_name(block) != scale_name(tensor):
            raise ArgumentError("an input and an output have different quantization. Pass .int_repr() of both.")
        if share_memory(block, tensor) and not (k == own and block.data_ptr() + offset == tensor.data_ptr()):
            raise ArgumentError("an input and an output share memory. Give the output its own memory.")
