"""`flatten_`: place tensors side by side in shared memory, the fastest way to send many tensors repeatedly."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...base.errors import ArgumentError
from ...engine.tensors.plain import as_bits
from ...ranks.group.group import Group
from ...ranks.group.initialize import group_or_default
from ..arguments import check_tensor


def flatten_(tensors: Iterable[torch.Tensor], group: Group | None = None) -> list[torch.Tensor]:
    """Move the data of tensors into one flat tensor per dtype, in shared memory; return the flat tensors.

    The tensors stay the same objects with the same values, as with `share_`, and are views of the flat ones. So one
    call on a flat tensor is a call on all its tensors, without a copy:

        (flat,) = unisono.flatten_(parameter.grad for parameter in model.parameters())
        unisono.all_reduce(flat, "avg")

    tensors: contiguous CPU tensors, parameters included; none twice. Earlier views of them keep the old memory. Where
    shared memory is full the flat tensors are private, and calls on them are staged. Raises ArgumentError for other
    tensors.
    """
    group, tensors = group_or_default(group), list(tensors)
    group.check_usable()
    for k, tensor in enumerate(tensors):
        check_tensor(f"tensors[{k}]", tensor, written=True)
        if not tensor.is_contiguous():
            raise ArgumentError(f"tensors[{k}]: only contiguous tensors can be moved; call .contiguous() first")
    if len({id(tensor) for tensor in tensors}) < len(tensors):
        raise ArgumentError("tensors: one of them is there twice; pass each once")
    flats = []
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        mine = [tensor for tensor in tensors if tensor.dtype is dtype]
        counts = [tensor.numel() for tensor in mine]
        flat = group.buffer(sum(counts), dtype)
        for tensor, piece in zip(mine, torch.split(flat, counts), strict=True):
            as_bits(piece).copy_(as_bits(tensor.detach()).view(-1))
            tensor.data = piece.view(tensor.shape)
        flats.append(flat)
    return flats
