"""`PlainTensors`: the tensors of a call, with plain copies of tensors that the call cannot work on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from ...engine.tensors import as_bits, is_plain
from ...ranks.group.group import Group
from .request import Request, Tensors

_Pair = tuple[torch.Tensor, torch.Tensor]


class PlainTensors(NamedTuple):
    """The input and the output of a call, plain: the user's tensors, or copies if these are not plain.

    With `keep_inputs`, a call in place works on copies, too: the user's tensors change only when it has succeeded. A
    call may be planned long before it is made, and be made many times. So each run takes the values first, and gives
    the results back at its end.

    inp, out: the tensors to work on.
    taken, given: pairs of a user's tensor and its copy.
    """

    inp: Tensors
    out: Tensors
    taken: list[_Pair]
    given: list[_Pair]

    @classmethod
    def of(cls, request: Request, group: Group) -> PlainTensors:
        """The tensors of a call of this group's rank. Copies hold no values yet."""
        copied: list[_Pair] = []

        def plain(tensor: torch.Tensor, keeps: bool = False) -> torch.Tensor:
            if is_plain(tensor) and not keeps:
                return tensor
            bits = as_bits(tensor.data)  # .data: a version counter of its own
            copy = torch.empty_like(bits, memory_format=torch.contiguous_format)
            copied.append((bits, copy))
            return copy.view(tensor.dtype) if copy.dtype != tensor.dtype else copy

        keeps = bool(request.in_place and group.host.config.keep_inputs)
        out = _each(request.out, lambda tensor: plain(tensor, keeps))
        results = list(copied)
        inp = out if request.in_place else _each(request.inp, plain)
        return cls(inp, out, copied, results if request.written_on(group.rank) else [])

    def take(self) -> None:
        """Copy the values of inputs, and of outputs: a rank may keep its output, such as rank 0 in exscan."""
        for tensor, copy in self.taken:
            copy.copy_(tensor)

    def give(self) -> None:
        """Copy the results to the user's tensors."""
        for tensor, copy in self.given:
            tensor.copy_(copy)


def _each(tensors: Tensors, change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
    if tensors is None:
        return None
    return change(tensors) if isinstance(tensors, torch.Tensor) else [change(tensor) for tensor in tensors]
