"""Collective communication for PyTorch tensors, written in Python that you can read.

    import unisono

    def work():
        t = unisono.empty(1 << 20).fill_(unisono.get_rank())
        unisono.all_reduce(t)

    unisono.run(work, ranks=4)

Names are loaded when they are first used, so that what needs no tensors (tables, proofs, pictures) needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .algorithms import CATALOGUE, Algorithm, algorithm
    from .collectives import (
        all_gather,
        all_gather_into_tensor,
        all_gather_single,
        all_reduce,
        all_to_all,
        all_to_all_single,
        barrier,
        broadcast,
        exscan,
        gather,
        reduce,
        reduce_scatter,
        reduce_scatter_single,
        reduce_scatter_tensor,
        scan,
        scatter,
    )
    from .errors import (
        AlgorithmError,
        ArgumentError,
        DTypeError,
        InternalError,
        MismatchError,
        NotInitialized,
        OutOfMemory,
        PeerError,
        PeerFailed,
        PeerGone,
        ProgramError,
        RankFailed,
        UnisonoError,
        UsageError,
        WaitTimeout,
    )
    from .groups import (
        destroy_group,
        get_global_rank,
        get_group_rank,
        get_process_group_ranks,
        new_group,
        split,
    )
    from .membership import (
        Group,
        NonMember,
        World,
        empty,
        get_rank,
        get_world_size,
        init,
        is_initialized,
        run,
        share_,
        shutdown,
        world,
    )  # fmt: skip
    from .objects import all_gather_object, broadcast_object_list, gather_object, scatter_object_list
    from .ops import ReduceOp, make_op, premul_sum
    from .schedule import Schedule, prove, trace
    from .sending import send
    from .work import Work

__version__ = "0.1.0"

_HOME = {
    **dict.fromkeys(("Algorithm", "CATALOGUE", "algorithm"), "algorithms"),
    **dict.fromkeys(
        (
            "all_gather", "all_gather_into_tensor", "all_gather_single", "all_reduce", "all_to_all",
            "all_to_all_single", "barrier", "broadcast", "exscan", "gather", "reduce", "reduce_scatter",
            "reduce_scatter_single", "reduce_scatter_tensor", "scan", "scatter",
        ),
        "collectives",
    ),
    **dict.fromkeys(
        (
            "AlgorithmError", "ArgumentError", "DTypeError", "InternalError", "MismatchError", "NotInitialized",
            "OutOfMemory", "PeerError", "PeerFailed", "PeerGone", "ProgramError", "RankFailed", "UnisonoError",
            "UsageError", "WaitTimeout",
        ),
        "errors",
    ),
    **dict.fromkeys(("ReduceOp", "make_op", "premul_sum"), "ops"),
    **dict.fromkeys(("Schedule", "prove", "trace"), "schedule"),
    **dict.fromkeys(
        ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
        "objects",
    ),
    **dict.fromkeys(
        (
            "destroy_group", "get_global_rank", "get_group_rank", "get_process_group_ranks", "new_group", "split",
        ),
        "groups",
    ),
    "send": "sending",
    **dict.fromkeys(
        (
            "Group", "NonMember", "World", "empty", "get_rank", "get_world_size", "init", "is_initialized", "run",
            "share_", "shutdown", "world",
        ),
        "membership",
    ),
    "Work": "work",
}  # fmt: skip

__all__ = [
    "CATALOGUE", "Algorithm", "AlgorithmError", "ArgumentError", "DTypeError", "Group", "InternalError",
    "MismatchError", "NonMember", "NotInitialized", "OutOfMemory", "PeerError", "PeerFailed", "PeerGone",
    "ProgramError", "RankFailed", "ReduceOp", "Schedule", "UnisonoError", "UsageError", "WaitTimeout", "Work", "World",
    "algorithm", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_gather_single", "all_reduce",
    "all_to_all", "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "destroy_group", "empty",
    "exscan", "gather", "gather_object", "get_global_rank", "get_group_rank", "get_process_group_ranks", "get_rank",
    "get_world_size", "init", "is_initialized", "make_op", "new_group", "premul_sum", "prove", "reduce",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "run", "scan", "scatter", "scatter_object_list",
    "send", "share_", "shutdown", "split", "trace", "world",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'unisono' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
