"""Changes of torch's functions, for all groups of unisono.

`patch_torch`: `monitored_barrier` takes Gloo's groups only, by name; DDP drops the Python half of a work object; the
buffers of DDP and fully_shard should lie in shared memory, so calls on them are zero copy. `SharedBuffers` is for DDP,
whose C++ code makes its buckets with at::empty. `share_sharded` lets fully_shard ask the process group for its buffers
(`allocate_tensor`). If the heap is full, a buffer is private, and calls on it are staged.
`hide_from_dynamo`: torch.compile must not trace our methods, which C++ code calls while it traces.
"""

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import wraps
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import distributed
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode

from ...ranks.group.group import Group
from ...schedule.choose import one_shot_limit
from .group_methods import Calls

_MARK = "_unisono"
_EMPTY = torch.ops.aten.empty.memory_format
_USUAL = {
    "layout": (None, torch.strided),
    "memory_format": (None, torch.contiguous_format),
    "pin_memory": (None, False),
}
"""Options of a tensor -> their values for a buffer of ours. Versions of torch pass some of them."""
_FSDP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_groups: weakref.WeakKeyDictionary[Any, Calls] = weakref.WeakKeyDictionary()
"""Reducer of DistributedDataParallel -> our process group."""


def patch_torch() -> None:
    """Make torch's functions accept our groups and works; for others nothing changes. Idempotent."""
    change(_with_our_barrier, "monitored_barrier", distributed, distributed_c10d)
    if not hasattr(distributed_c10d, "set_timeout"):  # which calls the group's method, from torch 2.14 on
        change(_with_our_timeout, "_set_pg_timeout", distributed_c10d)
    change(_without_ours, "_get_split_source", distributed_c10d)
    change(_with_ours_as_it_is, "_create_shrunk_process_group", distributed_c10d)
    change(_with_works_kept, "_set_forward_pass_work_handle", c10d.Reducer)
    change(_with_fp16_in_python, "_register_builtin_comm_hook", distributed, c10d)
    change(share_buckets, "__init__", c10d.Reducer)
    change(share_rebuilt, "_rebuild_buckets", c10d.Reducer)


def change(made_of: Callable[[Any], Any], name: str, *places: Any) -> None:
    """Replace a function of torch by `made_of(function)`. Idempotent."""
    original = getattr(places[0], name)
    if not hasattr(original, _MARK):
        changed = wraps(original)(made_of(original))
        setattr(changed, _MARK, True)
        for place in places:
            setattr(place, name, changed)


def _with_our_barrier(original: Any) -> Any:
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        asked = distributed_c10d._get_default_group() if group is None else group  # noqa: SLF001  as the original does
        if not isinstance(asked, Calls):
            original(group, timeout, wait_all_ranks)
            return
        given = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        asked.monitored_barrier(given, wait_all_ranks)

    return monitored_barrier


def _with_our_timeout(original: Any) -> Any:
    def set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        asked = distributed_c10d._get_default_group() if group is None else group  # noqa: SLF001  as the original does
        asked.set_timeout(timeout) if isinstance(asked, Calls) else original(timeout, group)

    return set_pg_timeout


def _without_ours(original: Any) -> Any:
    """Let `new_group` make a group of its own beside ours: torch can split one from backends in C++ only."""

    def get_split_source(*args: Any, **options: Any) -> Any:
        source = original(*args, **options)
        return None if isinstance(source, Calls) else source

    return get_split_source


def _with_ours_as_it_is(original: Any) -> Any:
    """If unisono is the backend of a shrunk group, the backend is the group. For C++ backends torch makes a group."""

    def create_shrunk_process_group(
        new_backend: Any, remaining_ranks: list[int], metadata: dict[str, Any], is_default_group: bool
    ) -> Any:
        if not isinstance(new_backend, Calls):
            return original(new_backend, remaining_ranks, metadata, is_default_group)
        made: Any = new_backend
        made._set_group_name(metadata["new_group_name"])  # noqa: SLF001  as the original does
        kind = "default:shrunken" if is_default_group else f"{metadata['original_group_name']}:shrunk"
        made._set_group_desc(kind)  # noqa: SLF001
        return made

    return create_shrunk_process_group


def _with_works_kept(original: Any) -> Any:
    """Keep the Python half of the work that a forward pass of DDP starts within `join`.

    DDP's C++ code waits for this work in the backward pass, and keeps only the C++ half, which alone never completes.
    """
    works: Any = weakref.WeakKeyDictionary()

    def set_forward_pass_work_handle(reducer: Any, work: Any, *args: Any, **options: Any) -> None:
        works[reducer] = work
        original(reducer, work, *args, **options)

    return set_forward_pass_work_handle


def _with_fp16_in_python(original: Any) -> Any:
    """DDP's builtin hook FP16_COMPRESS needs a future of a type that Python cannot make. This hook does the same."""

    def register_builtin_comm_hook(reducer: Any, kind: Any) -> None:
        ours = _groups.get(reducer)
        if ours is None or kind != c10d.BuiltinCommHookType.FP16_COMPRESS:
            original(reducer, kind)
            return
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        register: Any = distributed._register_comm_hook  # noqa: SLF001
        register(reducer, ours, fp16_compress_hook)

    return register_builtin_comm_hook


def hide_from_dynamo(*classes: type) -> None:
    """Make torch.compile run the methods of these classes, and all functions that they call, without tracing.

    It adds no cost to calls, and does not import torch._dynamo.
    """
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)  # noqa: SLF001
    for kind in classes:
        for value in vars(kind).values():
            function = value.fget if isinstance(value, property) else value
            if isinstance(function, FunctionType):
                for code in _codes(function.__code__):
                    eval_frame.set_code_exec_strategy(code, skip)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def make_buffer(group: Group, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor for collectives of a group; private if it is so short that calls on it are staged in any case."""
    engine = group.engine
    if count * dtype.itemsize <= one_shot_limit(group.size, engine.config, oversubscribed=engine.arena.oversubscribed):
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
        given = {name: value for name, value in options.items() if value not in _USUAL.get(name, ())}
        flat = func is _EMPTY and len(args) == 1 and len(args[0]) == 1 and given.keys() == {"dtype", "device"}
        if flat and given["device"].type == "cpu":
            return make_buffer(self._group, args[0][0], given["dtype"])
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


def share_sharded() -> None:
    """Let groups of parameters of fully_shard take their buffers from our process groups. Idempotent.

    A group calls this when it is asked for its rank, as fully_shard does first. The import of fully_shard takes a
    second, so it is left to the program.
    """
    if (kind := getattr(sys.modules.get(_FSDP), "FSDPParamGroup", None)) is not None:
        change(_with_our_buffers, "__init__", kind)


def _with_our_buffers(original: Any) -> Any:
    def init(parameters: Any, *args: Any, **options: Any) -> None:
        original(parameters, *args, **options)
        if parameters.device.type == "cpu" and isinstance(
            getattr(parameters.mesh_info, "shard_process_group", None), Calls
        ):
            parameters.set_allocate_memory_from_process_group(True)

    return init
