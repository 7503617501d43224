"""Buffers that torch makes for communication: those of our groups lie in shared memory, so calls on them are zero copy.

`SharedBuffers` is for DistributedDataParallel, whose C++ code makes its buckets with at::empty. fully_shard asks the
process group for its buffers (`allocate_tensor`), once it has been told to (`share_sharded`). Where the heap is full, a
buffer is private, and its calls run staged.
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
"""Our process groups of reducers of DistributedDataParallel."""


def process_group_of(reducer: Any) -> Calls | None:
    """Our process group in which a reducer communicates; None if it is not ours."""
    return _groups.get(reducer)


def make_buffer(group: Group, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor for collectives of a group; private if calls on it are staged in any case, because it is short."""
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
    """Change how a reducer of DistributedDataParallel is made: its buckets lie in shared memory."""

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
    """Change how a reducer makes its buckets anew, after the first step: these lie in shared memory, too."""

    def rebuild_buckets(reducer: Any) -> Any:
        group = _groups.get(reducer)
        if group is None:
            return original(reducer)
        with SharedBuffers(group.group):
            return original(reducer)

    return rebuild_buckets


def share_sharded(original: Any) -> Any:
    """Change how fully_shard makes a group of parameters: it takes its buffers from our process groups."""

    def init(parameters: Any, *args: Any, **options: Any) -> None:
        original(parameters, *args, **options)
        if parameters.device.type == "cpu" and isinstance(
            getattr(parameters.mesh_info, "shard_process_group", None), Calls
        ):
            parameters.set_allocate_memory_from_process_group(True)

    return init
