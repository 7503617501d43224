"""What calls accept, checked before anything moves. Every error names the argument and the rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from .engine.reducers import DTYPES, OPS
from .errors import ArgumentError, DTypeError
from .membership.group import Group

__all__ = [
    "check_apart", "check_op", "check_root", "check_rooted", "check_tensor", "check_tensors", "check_whole",
    "count_name", "dtype_name", "op_name", "shape_name",
]  # fmt: skip


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def shape_name(tensor: torch.Tensor) -> str:
    """`float32[2, 3]`."""
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"


def count_name(tensor: torch.Tensor) -> str:
    """`float32[6]` for six elements in any shape: what ranks must agree on."""
    return f"{dtype_name(tensor.dtype)}[{tensor.numel()}]"


def op_name(op: object) -> str:
    """The name of an op: a string such as "sum", or one of torch.distributed.ReduceOp."""
    if isinstance(op, str):
        name = op.lower()
    else:
        # torch.distributed.ReduceOp.SUM prints as RedOpType.SUM or <RedOpType.SUM: 0>
        text = str(getattr(op, "op", op))
        if "RedOpType" not in text:
            raise DTypeError(f"op: {op!r} is no reduce op; use one of {', '.join(OPS)}")
        name = text.strip("<>").split(".")[-1].split(":")[0].lower()
    name = {"mul": "product", "prod": "product", "mean": "avg"}.get(name, name)
    if name not in OPS:
        raise ArgumentError(f"op: {op!r} is not supported; use one of {', '.join(OPS)}")
    return name


def check_op(name: str, tensor: torch.Tensor) -> None:
    """Is there this op for tensors of this dtype?"""
    if dtype_name(tensor.dtype) not in DTYPES:
        raise DTypeError(
            f"there is no {name} of {dtype_name(tensor.dtype)} tensors, only of {', '.join(DTYPES)}: "
            "convert the tensor first"
        )


def check_tensor(argument: str, tensor: Any, *, written: bool = False) -> None:
    """A dense tensor in the memory of the processor; `written`: no two of its elements share memory."""
    if not isinstance(tensor, torch.Tensor):
        raise DTypeError(f"{argument}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise DTypeError(f"{argument}: {tensor.layout} tensors are not supported; call .to_dense() first")
    if not tensor.is_cpu:
        raise ArgumentError(f"{argument}: is on {tensor.device}, but only CPU tensors are supported; call .cpu() first")
    if tensor.is_quantized:
        raise DTypeError(f"{argument}: quantized tensors are not supported; pass .int_repr()")
    if written and not tensor.is_contiguous() and torch._debug_has_internal_overlap(tensor) == 1:  # noqa: SLF001
        raise ArgumentError(f"{argument}: several of its elements share memory (it is expanded); pass .contiguous()")
    if written and (tensor.is_conj() or tensor.is_neg()):
        raise ArgumentError(f"{argument}: is a conjugate or negative view; pass .resolve_conj().resolve_neg()")


def check_tensors(
    argument: str, tensors: Any, group: Group, like: torch.Tensor, *, written: bool = False
) -> Sequence[torch.Tensor]:
    """One tensor per rank, each of the dtype and count of `like`."""
    if not isinstance(tensors, Sequence):
        raise DTypeError(f"{argument}: expected a list of {group.size} tensors, got {type(tensors).__name__}")
    if len(tensors) != group.size:
        raise ArgumentError(f"{argument}: expected {group.size} tensors, one per rank, got {len(tensors)}")
    for rank, tensor in enumerate(tensors):
        check_tensor(f"{argument}[{rank}]", tensor, written=written)
        if tensor.dtype != like.dtype or tensor.numel() != like.numel():
            raise ArgumentError(
                f"{argument}[{rank}]: is {shape_name(tensor)}, but rank {group.rank} exchanges blocks like "
                f"{shape_name(like)}; every block has the same dtype and number of elements"
            )
    if written:
        spans = sorted((t.data_ptr(), t.nbytes, rank) for rank, t in enumerate(tensors) if t.is_contiguous())
        for (start, nbytes, first), (after, _, second) in pairwise(spans):
            if start + nbytes > after and nbytes:
                raise ArgumentError(f"{argument}[{first}] and {argument}[{second}] share memory: each needs its own")
    return tensors


def check_root(argument: str, root: Any, group: Group) -> int:
    """A rank of the group."""
    if isinstance(root, bool) or not isinstance(root, int):
        raise DTypeError(f"{argument}: expected a rank, got {type(root).__name__}")
    if not 0 <= root < group.size:
        raise ArgumentError(f"{argument}={root}: the ranks of this group are 0 to {group.size - 1}")
    return root


def check_rooted(
    argument: str, tensors: Any, root_argument: str, root: int, group: Group, like: torch.Tensor, *, written: bool
) -> Sequence[torch.Tensor] | None:
    """The list of a rooted call: needed on the root, and only there."""
    if group.rank == root:
        if tensors is None:
            raise ArgumentError(f"{argument}: rank {root} is {root_argument} and must pass one tensor per rank")
        return check_tensors(argument, tensors, group, like, written=written)
    if tensors:
        raise ArgumentError(
            f"{argument}: only rank {root} ({root_argument}) passes it, but rank {group.rank} did; pass None here"
        )
    return None


def check_whole(whole_name: str, whole: torch.Tensor, part_name: str, part: torch.Tensor, group: Group) -> None:
    """The whole has one part for every rank."""
    if whole.dtype != part.dtype or whole.numel() != part.numel() * group.size:
        raise ArgumentError(
            f"{whole_name}: is {shape_name(whole)}, but {part_name} is {shape_name(part)} and there are {group.size} "
            f"ranks: {whole_name} needs the same dtype and {part.numel() * group.size} elements"
        )


def check_apart(blocks: Sequence[torch.Tensor], tensor: torch.Tensor, own: int | None, offset: int = 0) -> None:
    """Inputs and outputs share no memory; blocks[own], from `offset` bytes on, may be the tensor itself."""
    first, last = tensor.data_ptr(), tensor.data_ptr() + _extent(tensor)
    for k, block in enumerate(blocks):
        start = block.data_ptr()
        if max(first, start) < min(last, start + _extent(block)) and not (k == own and start + offset == first):
            raise ArgumentError("an input and an output share memory in part: give the output memory of its own")


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from the first element to behind the last."""
    if tensor.numel() == 0:
        return 0
    spans = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((n - 1) * step for n, step in spans)) * tensor.element_size()
