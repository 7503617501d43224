"""Changes of torch's functions that give hooks to a group, from torch 2.14 on: calls of our groups make detours then.

With a `FlightRecorderHook`, torch's flight recorder sees them. torch attaches one to each group whose backend does not
record by itself. To ours it does if TORCH_FR_BUFFER_SIZE is set, because a recorded call takes longer. Such a group
writes its records to a file before an error of lost or late ranks, as NCCL does.
"""

import os
import weakref
from functools import partial
from typing import Any

import torch._C._distributed_c10d as c10d
from torch.distributed import distributed_c10d

from ...base.release import NAME
from .group_methods import Calls
from .hooks import Hooks, with_our_work
from .patch import change

_GLOO = "gloo"
_SIZES = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
_ON_TIMEOUT = "TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"
_DUMPS = "_dump_fr_trace", "_dump_fr_trace_file", "_dump_fr_trace_json", "_reset_fr_trace"
_HOOK = -2026  # the id of our hook: programs' are positive

inner: weakref.WeakKeyDictionary[Any, Calls] = weakref.WeakKeyDictionary()
"""Group that a program has put together -> our group in it."""


def patch_hooks() -> None:
    """Let hooks see the calls of our groups. Idempotent."""
    known: Any = c10d
    for made_of, name, kind in (
        (_with_detours, "register_pre_hook", "ProcessGroup"),
        (_with_detours, "unregister_pre_hook", "ProcessGroup"),
        (_with_our_works, "register_post_hook", "ProcessGroup"),
        (_with_detours, "unregister_post_hook", "ProcessGroup"),
        (_with_detours, "attach", "NanCheckHook"),
        (_with_dumps, "attach", "FlightRecorderHook"),
    ):
        if hasattr(place := getattr(known, kind, None), name):
            change(made_of, name, place)
    if hasattr(distributed_c10d, "_maybe_attach_flight_recorder"):
        change(_when_asked, "_maybe_attach_flight_recorder", distributed_c10d)


def _with_detours(original: Any) -> Any:
    """A function for the hooks of a group. If the group is ours, its calls make detours from now on."""

    def with_detours(pg: Any, *args: Any, **options: Any) -> Any:
        group = inner.get(pg, pg)
        if isinstance(group, Calls):
            ours: Any = group
            ours.hooks = ours.backend.hooks = ours.hooks or Hooks()
            ours.through_torch = ours.backend.through_torch = True
        return original(group, *args, **options)

    return with_detours


def _with_our_works(original: Any) -> Any:
    def register_post_hook(group: Any, hook_id: int, hook: Any) -> None:
        hooks = group.hooks if isinstance(group, Calls) else None
        original(group, hook_id, hook if hooks is None else with_our_work(hooks, hook))

    return _with_detours(register_post_hook)


def _with_dumps(original: Any) -> Any:
    """`FlightRecorderHook.attach`. torch would write the file itself if a backend in Python could have abort hooks."""

    def attach(group: Any, *args: Any, **options: Any) -> Any:
        hook = original(group, *args, **options)
        if isinstance(group, Calls):
            ranks = group.group.named or range(group.group.size)
            group.register_abort_hook(_HOOK, partial(_dump, weakref.ref(hook), ranks[group.group.rank]))
            if group.asked_as == _GLOO:
                for name in _DUMPS:
                    change(_of_ours, name, c10d)
        return hook

    return _with_detours(attach)


def _dump(hook: weakref.ref[Any], rank: int) -> None:
    if hook() is not None and _set(_ON_TIMEOUT, "1").lower() not in ("0", "n", "no", "f", "false"):
        known: Any = c10d
        known._dump_fr_trace_file(rank, True, True, False, NAME)  # noqa: SLF001


def _of_ours(original: Any) -> Any:
    """A function of a recorder. That of Gloo is then ours: a backend of this name in Python has none in torch."""

    def of_ours(*args: Any, **options: Any) -> Any:
        if not any(isinstance(arg, str) for arg in args) and options.get("backend", _GLOO) == _GLOO:
            options["backend"] = NAME
        return original(*(NAME if arg == _GLOO else arg for arg in args), **options)

    return of_ours


def _when_asked(original: Any) -> Any:
    """Let torch record the calls of our groups if the environment says so, and otherwise of other backends only."""

    def maybe_attach_flight_recorder(group: Any, config: Any, global_ranks: list[int]) -> None:
        if not isinstance(group, Calls):
            original(group, config, global_ranks)
        elif int(_set(_SIZES, "0")) > 0:
            known: Any = c10d
            hook = known.FlightRecorderHook.attach(group, global_ranks)
            world: Any = distributed_c10d._world  # noqa: SLF001
            world.pg_flight_recorder_hooks[group] = hook
        else:
            direct = group.hooks, group.through_torch
            original(group, config, global_ranks)
            group.hooks, group.through_torch = direct

    return maybe_attach_flight_recorder


def _set(names: tuple[str, ...], usual: str) -> str:
    """The value of the first of these variables that is set."""
    return next(filter(None, map(os.environ.get, names)), usual)
