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
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "config": ["Config"],
    "records": ["CallRecord", "Departure"],
    "algorithms": ["Algorithm", "CATALOGUE", "algorithm"],
    "collectives": [
        "all_gather", "all_gather_into_tensor", "all_gather_single", "all_reduce", "all_to_all", "all_to_all_single",
        "barrier", "broadcast", "exscan", "gather", "reduce", "reduce_scatter", "reduce_scatter_single",
        "reduce_scatter_tensor", "scan", "scatter",
    ],
    "errors": [
        "AlgorithmError", "ArgumentError", "DTypeError", "InternalError", "LeftOut", "MessageMismatch", "MismatchError",
        "NestedCall", "NotInitialized", "OutOfMemory", "PeerError", "PeerFailed", "PeerGone", "PeerUnreachable",
        "ProgramError", "RankFailed",
        "UnisonoError", "UsageError", "WaitTimeout",
    ],
    "ops": ["ReduceOp", "make_op", "premul_sum"],
    "schedule": ["Schedule", "prove", "trace"],
    "objects": ["all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"],
    "groups": ["destroy_group", "get_global_rank", "get_group_rank", "get_process_group_ranks", "new_group", "split"],
    "coalesced": [
        "Coalescing", "all_gather_coalesced", "all_reduce_coalesced", "broadcast_coalesced", "coalescing", "flatten_",
        "reduce_scatter_coalesced",
    ],
    "compression": ["Compression", "compress_hook"],
    "recovery": ["retry"],
    "growth": ["grow"],
    "modules": ["average_gradients", "average_parameters", "broadcast_module", "broadcast_state_dict"],
    "p2p": [
        "P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "recv_object_list", "send", "send_object_list",
        "sendrecv",
    ],
    "membership": [
        "Group", "NonMember", "empty", "get_rank", "get_world_size", "init", "is_initialized", "join", "share_",
        "shutdown",
    ],
    "local_world": ["World", "run", "world"],
    "traced": ["tracing"],
    "work": ["Work"],
}  # fmt: skip
"""Module -> the public names that it has. `__init__.pyi` has their types."""

_HOME = {name: module for module, names in _NAMES.items() for name in names}

_ROOMS = frozenset({"autograd", "p2p"})
"""Modules that users name: `unisono.autograd.all_reduce`."""

__all__ = [*_HOME, *_ROOMS]  # noqa: PLE0604  the keys are names


def __getattr__(name: str) -> Any:
    if name not in _ROOMS and name not in _HOME:
        import sys

        # With both names Python says what may have been meant.
        raise AttributeError(f"module 'unisono' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    from .garbage import no_collections

    with no_collections():
        module = import_module(f".{_HOME.get(name, name)}", __name__)
    if name in _ROOMS:
        return module
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
