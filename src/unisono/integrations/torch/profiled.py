"""Events for profilers: one for each call, with the shapes of the rank's input tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch._C._profiler import _RecordFunctionFast

from .other_ways import tensors_in

_GIVEN = "tensors", "inputs", "input"
_WORDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "recv_anysource": "recvAnySource",
}


def recorder(method: Callable[..., Any]) -> Callable[[str, tuple[Any, ...]], AbstractContextManager[Any]]:
    """For a method of a group, a function that makes a call's event from the group's name and the call's arguments.

    Events have names as in torch's own backends: "gloo:all_reduce", for all forms of all_reduce.
    """
    word = method.__name__.strip("_").removesuffix("_coalesced").removesuffix("_single")
    title = _WORDS.get(word, word)
    parameters = [*inspect.signature(method).parameters][1:]
    at = next((at for at, name in enumerate(parameters) if name in _GIVEN), len(parameters))

    def record(group_name: str, args: tuple[Any, ...]) -> AbstractContextManager[Any]:
        made: AbstractContextManager[Any] = _RecordFunctionFast(
            f"{group_name}:{title}", tensors_in(args[at : at + 1], [])
        )
        return made

    return record
