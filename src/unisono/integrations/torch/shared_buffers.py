"""Buffers that torch makes for groups of unisono lie in shared memory. So calls on them are zero copy.

`SharedBuffers` is for DistributedDataParallel, whose C++ code makes its buckets with at::empty. `share_sharded` lets
fully_shard ask the process group for its buffers (`allocate_tensor`). If the heap is full, a buffer is private, and
calls on it are staged.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...ranks.group.group import Group
from ...schedule.choose import is_oversubscribed, one_shot_limit
from .group_methods import Calls

_EMPTY = torch.ops.aten.empty.memory_format
_groups: weakref.WeakKeyDictionary[Any, Calls] = weakref.WeakKeyDictionary()
"""Reducer of DistributedDataParallel -> our process group."""


def process_group_of(reducer: Any) -> Calls | None:
    """The process group of a reducer; None if unisono has not made it."""
    return _groups.get(reducer)


def make_buffer(group: Group, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor for collectives of a group; private if it is so short that calls on it are staged in any case."""
    if count * dtype.itemsize <= one_shot_limit(
        group.size, group.host.config, oversubscribed=is_oversubscribed(group.host.arena.neighbours)
    ):
        return torch.empty(count, dtype=dtype, device="cpu")
    return group.buffer(count, dtype)


class SharedBuffers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this context, flat CPU tensors that torch's C++ code makes on this thread are `make_buffer`'s."""

    def __init__(self, group: Group) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._group = group

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one of torch's operators."""
        options = kwargs or {}
        flat = func is _EMPTY and len(args) == 1 and len(args[0]) == 1 and options.keys() == {"dtype", "device"}
        if flat and options["device"].type == "cpu":
            return make_buffer(self._group, args[0][0], options["dtype"])
        return func(*args, **options)


def share_buckets(original: Any) -> Any:
    """Let the buckets of a new reducer of DistributedDataParallel lie in shared memory."""

    def init(reducer: Any, *args: Any, **options: Any) -> None:
        ours = next((one for one in (*args, *options.values()) if isinstance(one, Calls)), None)
        if ours is None:
            original(reducer, *args, **options)
            return
        with SharedBuffers(ours.group):
            original(reducer, *args, **options)
        _groups[reducer] = ours

    return init


def share_rebuilt(original: Any) -> Any:
    """Let the buckets that a reducer makes after the first step lie in shared memory, too."""

    def rebuild_buckets(reducer: Any) -> Any:
        group = _groups.get(reducer)
        if group is None:
            return original(reducer)
        with SharedBuffers(group.group):
            return original(reducer)

    return rebuild_buckets


def share_sharded(original: Any) -> Any:
    """Let groups of parameters of fully_shard take their buffers from our process groups."""

    def init(parameters: Any, *args: Any, **options: Any) -> None:
        original(parameters, *args, **options)
        if parameters.device.type == "cpu" and isinstance(
            getattr(parameters.mesh_info, "shard_process_group", None), Calls
        ):
            parameters.set_allocate_memory_from_process_group(True)

    return init
