"""Calls that our groups refuse and Gloo makes: a group under Gloo's name makes them in another way.

Each rank chooses the way before it sends anything, and no two ranks choose differently. For tensors of other devices,
and outputs that share memory, a rank makes our call on copies, whatever the others do. Other calls go to Gloo's group
(`gloo_beside`), once all ranks have agreed on the call in ours.
"""

import inspect
import logging
from collections.abc import Callable
from functools import cache
from itertools import combinations, pairwise
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from ...base.errors import ArgumentError
from ...base.release import NAME
from ...calls.dispatch import Call, refuse
from ...calls.work import FinishedWork
from ...engine.tensors import in_mode_of, mark_written, needed_by_autograd, share_memory
from ...ranks.group.group import Group
from .methods import MESSAGES
from .to_torch import Finished, tensors_in

Method = Callable[..., Any]
Pairs = list[tuple[torch.Tensor, torch.Tensor]]

_LOG = logging.getLogger(NAME)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_HALVES = {torch.complex32, getattr(torch, "bcomplex32", torch.complex32)}  # the second from torch 2.15 on
_SUMS = "allreduce", "reduce", "reduce_scatter", "reduce_scatter_single"
_GIVEN = {"broadcast": 0, "allreduce": 0, "allgather": 1}
"""Calls for which Gloo takes several tensors from a rank -> the index of the argument with their list."""
_EXCHANGES = "alltoall", "all_to_all_single"  # calls in which no block of a rank may lie in place
_WRITTEN = "tensors", "output"  # a call may write the tensors of parameters whose names begin so
BY_TORCH: Any = object()
"""The way of a call that torch itself makes: within LocalTensorMode one process stands for all ranks."""
_said: set[str] = set()


def other_way(group: Any, method: Method, args: tuple[Any, ...]) -> c10d.Work | None:
    """Make a call of a group under Gloo's name in another way, if it needs one; None if it does not.

    method: a method of `Calls`. args: in torch's long form. Returns the call's work.
    """
    if len(args) == 2 and (given := args[0]).__class__ is list and len(given) == 1 and _is_usual(given[0]):
        return None  # most calls have one tensor
    name, tensors = method.__name__, tensors_in(args, [])
    several = name in _GIVEN and len(args[_GIVEN[name]]) > 1
    if all(map(_is_usual, tensors)) and not several:
        if _apart(tensors):
            return None
        outputs, inputs = results(method, args, "output"), results(method, args, "input")
        if not _apart(outputs) and any(share_memory(one, other) for one, other in combinations(outputs, 2)):
            _say_once(f"{name}: outputs share memory, so only what is written last stays, as over Gloo")
            return _on_copies(group, method, args, lambda _, written: written)
        if shared := _inputs_in(outputs, inputs, name, group.group.rank):
            _say_once(f"{name}: an output shares memory with an input, which is copied first")
            return _on_copies(group, method, args, lambda tensor, _: any(tensor is given for given in shared))
        return None
    if any(type(tensor).__name__ == "LocalTensor" for tensor in tensors):
        return BY_TORCH  # type: ignore[no-any-return]
    if any(tensor.is_meta or type(tensor).__name__ == "FakeTensor" for tensor in tensors):
        _say_once(f"{name}: tensors without elements are not communicated, as over Gloo")
        return Finished(FinishedWork(None), tensors)
    if name in MESSAGES:
        return None
    if devices := {tensor.device.type for tensor in tensors if not tensor.is_cpu}:
        _say_once(f"{name}: tensors of {', '.join(sorted(devices))} go through the memory of the host, as over Gloo")
        return _on_copies(group, method, args, lambda tensor, _: not tensor.is_cpu)
    if why := _only_gloo(name, tensors, args[-1], several=several):
        _say_once(f"{name}: {why}: such calls go to a group of Gloo's")
        work: c10d.Work = group.over_gloo(method, args)
        return work
    return None


def _is_usual(tensor: torch.Tensor) -> bool:
    return (
        (tensor.__class__ is torch.Tensor or tensor.__class__ in _PLAIN)
        and tensor.is_cpu
        and tensor.dtype not in _HALVES
    )


def _only_gloo(name: str, tensors: list[torch.Tensor], opts: Any, *, several: bool) -> str:
    """Why only Gloo can make this call of CPU tensors; empty if we can. Ranks of a correct program agree on it."""
    for tensor in tensors:
        kind = type(tensor)
        stands_for_others = kind not in _PLAIN and kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        if stands_for_others and kind.__name__ != "AsyncCollectiveTensor":  # it has elements, after a wait
            return f"a {kind.__name__} passes calls on to its parts"
    op = getattr(opts, "reduceOp", None)
    if several and op != c10d.ReduceOp.AVG:  # with AVG Gloo divides the first tensor only
        return "a rank gives several tensors"
    if name in _SUMS and op == c10d.ReduceOp.SUM and any(tensor.dtype in _HALVES for tensor in tensors):
        return "complex numbers of 32 bits are added"
    return ""


def _on_copies(
    group: Any, method: Method, args: tuple[Any, ...], which: Callable[[torch.Tensor, bool], bool]
) -> c10d.Work:
    """Make the call on copies in the memory of the host, and copy the results back, in order.

    which: does this tensor need a copy? Its second argument is whether the call writes the tensor.
    """
    *places, opts = args
    pairs, inner = Pairs(), now(opts)
    with Call(method.__name__, group.group, opts.asyncOp) as call:
        named = zip(_parameters(method), places, strict=True)
        made = [_replaced(place, name, which, pairs) for name, place in named]
        marked = needed_by_autograd([tensor for tensor, _ in pairs])

        def action(_: str | None) -> None:
            try:
                if other_way(group, method, (*made, inner)) is None:
                    method(group, *made, inner)
            except ArgumentError as error:
                count_refused(group.group, method.__name__, error)
                raise
            for tensor, copy in pairs:
                with in_mode_of(tensor):
                    (tensor.data if tensor.layout is torch.strided else tensor).copy_(copy)
            mark_written(marked)

        call.action = action
    return group._work(call.run(), results(method, args))  # type: ignore[no-any-return]  # noqa: SLF001  a part of `Calls`


def count_refused(group: Group, name: str, error: BaseException) -> None:
    """Let the error of a method that has made no call (`before_call`) count as its call, once."""
    if vars(error).pop("before_call", False):
        refuse(group, name, error)


def _replaced(place: Any, name: str, which: Callable[[torch.Tensor, bool], bool], pairs: Pairs) -> Any:
    """An argument with copies in it. pairs: gets the copies that the call writes."""
    if isinstance(place, list | tuple):
        return [_replaced(item, name, which, pairs) for item in place]
    written = name.startswith(_WRITTEN)
    if not isinstance(place, torch.Tensor) or not which(place, written):
        return place
    read = not name.startswith("output")  # the values of outputs do not matter
    if place.layout is torch.strided and (place.is_cuda or not read):
        # A GPU reads and writes pinned memory many times as fast. torch keeps such memory for the next call.
        copy = torch.empty(place.shape, dtype=place.dtype, device="cpu", pin_memory=place.is_cuda)
        if read:
            copy.copy_(place.detach())
    else:
        copy = place.detach().to("cpu", copy=True)
    if written:
        pairs.append((place, copy))
    return copy


def now(opts: Any) -> Any:
    """The options of a call, to make the same call on this thread."""
    made = type(opts)()
    for field in ("reduceOp", "rootRank", "rootTensor", "timeout"):
        if hasattr(opts, field):
            setattr(made, field, getattr(opts, field))
    made.asyncOp = False
    return made


@cache
def _parameters(method: Method) -> list[str]:
    return list(inspect.signature(method).parameters)[1:-1]


def results(method: Method, args: tuple[Any, ...], *names: str) -> list[torch.Tensor]:
    """The tensors that a call may write. names: the beginnings of their parameters' names."""
    pairs = zip(_parameters(method), args, strict=False)
    return [
        tensor for name, place in pairs if name.startswith(names or _WRITTEN) for tensor in tensors_in((place,), [])
    ]


def _inputs_in(outputs: list[torch.Tensor], inputs: list[torch.Tensor], name: str, rank: int) -> list[torch.Tensor]:
    """The inputs that share memory with an output, unless this rank's own block lies in place there."""

    def in_place(k: int, given: torch.Tensor, m: int, written: torch.Tensor) -> bool:
        if name in _EXCHANGES:
            return False
        if len(inputs) == len(outputs) == 1:  # the larger tensor has the blocks of all ranks
            whole, part = sorted((given, written), key=torch.Tensor.numel, reverse=True)
            return part.data_ptr() == whole.data_ptr() + rank * part.nbytes
        return k + m == rank and given.data_ptr() == written.data_ptr()

    return [
        given
        for k, given in enumerate(inputs)
        if any(share_memory(given, written) and not in_place(k, given, m, written) for m, written in enumerate(outputs))
    ]


def _apart(tensors: list[torch.Tensor]) -> bool:
    """Is it seen at once that none of these shares memory, or do some have no memory of a known place?"""
    places = []
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_nested:
            return True
        if tensor.is_contiguous():
            start = tensor.data_ptr()
            places.append((start, start + tensor.nbytes))
    places.sort()
    return len(places) == len(tensors) and all(end <= after for (_, end), (after, _) in pairwise(places))


def _say_once(text: str) -> None:
    """Log a difference from groups without Gloo's name, once in this process."""
    if text not in _said:
        _said.add(text)
        _LOG.warning("%s. Said once", text)
