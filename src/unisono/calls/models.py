"""Whole models in one call: broadcast their values, average their gradients, average their parameters.

Each of these first checks that all ranks' models have the same names, shapes and dtypes, and raises the same error on
every rank if they do not. Parameters and buffers with several names are sent once.
"""

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any

import torch

from ..base.errors import ArgumentError, DTypeError
from ..base.records import ESCAPED
from ..base.units import ranks_text
from ..engine.tensors import as_bits, check_is_tensor, set_memory
from ..ranks.group.group import Group
from ..ranks.group.initialize import group_or_default
from .arguments import check_tensor, shape_name
from .coalesced import all_reduce_coalesced, broadcast_coalesced
from .collectives.all_reduce import all_reduce
from .dispatch import checking
from .objects import all_gather_object

_NO_GRADIENT, _GRADIENT, _SPARSE = 0, 1, 2


def broadcast_module(
    model: torch.nn.Module | Mapping[str, torch.Tensor], src: int = 0, group: Group | None = None
) -> None:
    """Copy a model's parameters and buffers from rank `src` to all ranks, in place.

    Args:
        model: A module, or a mapping of names to tensors such as `model.state_dict()`.
        src: The rank whose model is copied.

    Raises:
        ArgumentError: The models' names, shapes or dtypes differ. Every rank raises it, with the first difference.
    """
    group = group_or_default(group)
    if isinstance(model, Mapping):
        state = model
    else:
        state = {**_parameters(model, group, "broadcast_module"), **dict(model.named_buffers())}
    broadcast_coalesced(_agreed(group, "broadcast", state), src, group)


def average_parameters(model: torch.nn.Module, group: Group | None = None) -> None:
    """Replace a model's parameters by their average over all ranks. Buffers do not change.

    Raises:
        ArgumentError: The models' names, shapes or dtypes differ. Every rank raises it, with the first difference.
    """
    group = group_or_default(group)
    all_reduce_coalesced(_agreed(group, "average", _parameters(model, group, "average_parameters")), "avg", group)


def average_gradients(model: torch.nn.Module, group: Group | None = None) -> None:
    """Replace a model's gradients by their average over all ranks. Call it between `backward()` and `step()`.

    A gradient that only some ranks have counts as zero on the others, and every rank gets the average. A parameter that
    has no gradient on any rank keeps None.

    Raises:
        DTypeError: A gradient is sparse. Every rank raises it.
        MismatchError: The models differ.
    """
    group = group_or_default(group)
    parameters = _parameters(model, group, "average_gradients")
    states = [_gradient_state(parameter) for parameter in parameters.values()]
    anywhere = torch.tensor(states, dtype=torch.uint8, device="cpu")
    all_reduce(anywhere, "max", group)
    for (name, parameter), state in zip(parameters.items(), anywhere.tolist(), strict=True):
        if state == _SPARSE:
            raise DTypeError(
                f"{name}: its gradient is sparse on some rank, and only dense gradients can be averaged. Make its "
                "layer with sparse=False, or set parameter.grad = parameter.grad.to_dense() on all ranks."
            )
        if state == _GRADIENT and parameter.grad is None:
            with checking(group, "average_gradients"):
                parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in parameters.values()]
    all_reduce_coalesced([gradient for gradient in gradients if gradient is not None], "avg", group)


def _parameters(model: torch.nn.Module, group: Group, call: str) -> dict[str, torch.Tensor]:
    with checking(group, call):
        if not isinstance(model, torch.nn.Module):
            raise DTypeError(f"model: got {type(model).__name__}, expected a torch.nn.Module")
        return dict(model.named_parameters())


def _gradient_state(parameter: torch.Tensor) -> int:
    if parameter.grad is None:
        return _NO_GRADIENT
    return _GRADIENT if parameter.grad.layout is torch.strided else _SPARSE


def _agreed(group: Group, doing: str, state: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, each once. Raises ArgumentError on every rank if names, shapes or dtypes differ between ranks."""
    with checking(group, doing):
        once: dict[tuple[object, ...], tuple[str, torch.Tensor]] = {}
        for name, tensor in state.items():
            once.setdefault(_identity(name, tensor), (name, tensor))
        text = "\n".join(f"{shape_name(tensor)} {name}" for name, tensor in once.values())
        said: list[Any] = [None] * group.size
    all_gather_object(said, text.encode(errors=ESCAPED).decode(), group)
    if len(set(said)) > 1:
        raise ArgumentError(f"{doing}: {_difference(said)}")
    return [tensor for _, tensor in once.values()]


def _identity(name: str, tensor: Any) -> tuple[object, ...]:
    """A key that is equal for two names of one tensor. Raises if the tensor cannot be sent."""
    check_is_tensor(name, tensor, "Leave it out")
    if torch.nn.parameter.is_lazy(tensor):
        raise ArgumentError(f"{name}: has no shape yet. Call the model once on every rank first.")
    check_tensor(name, tensor)
    if not tensor.numel():
        return (name,)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _difference(texts: list[str]) -> str:
    """Describe the first line in which the ranks' texts differ, with the ranks that have each version."""
    rows = zip_longest(*map(str.splitlines, texts), fillvalue="nothing more")
    at, lines = next((k, lines) for k, lines in enumerate(rows) if len(set(lines)) > 1)
    ranks = {said: [rank for rank, line in enumerate(lines) if line == said] for said in lines}
    parts = [f"{said} on {ranks_text(ranks[said])}" for said in ranks]
    return f"the ranks' tensors differ, first at number {at}: {'; '.join(parts)}. Build the same model on every rank."


def flatten_(tensors: Iterable[torch.Tensor], group: Group | None = None) -> list[torch.Tensor]:
    """Move the data of many tensors into one flat tensor for each dtype, in shared memory.

    The tensors stay the same objects with the same values and become views of the flat tensors. A call on a flat tensor
    is then a call on all of them, without a copy. If shared memory is full, the flat tensors are private.

    Args:
        tensors: Contiguous CPU tensors or parameters, each once. Existing views of them keep the old memory.

    Returns:
        The flat tensors.

    Raises:
        ArgumentError: A tensor is listed twice, is not contiguous, or is not on the CPU.

    Example::

        (flat,) = unisono.flatten_(parameter.grad for parameter in model.parameters())
        unisono.all_reduce(flat, "avg")
    """
    group, tensors = group_or_default(group), list(tensors)
    group.check_usable()
    for k, tensor in enumerate(tensors):
        check_tensor(f"tensors[{k}]", tensor, written=True)
        if not tensor.is_contiguous():
            raise ArgumentError(f"tensors[{k}]: got a tensor that is not contiguous. Call .contiguous() first.")
    if len({id(tensor) for tensor in tensors}) < len(tensors):
        raise ArgumentError("tensors: a tensor is listed twice. Pass each once.")
    flats = []
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        mine = [tensor for tensor in tensors if tensor.dtype is dtype]
        counts = [tensor.numel() for tensor in mine]
        flat = group.buffer(sum(counts), dtype)
        for tensor, piece in zip(mine, torch.split(flat, counts), strict=True):
            as_bits(piece).copy_(as_bits(tensor.detach()).view(-1))
            set_memory(tensor, piece)
        flats.append(flat)
    return flats
