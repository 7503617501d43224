"""Collective communication for PyTorch tensors, written in Python that you can read.

    import unisono

    def work():
        t = unisono.empty(1 << 20).fill_(unisono.get_rank())
        unisono.all_reduce(t)

    unisono.run(work, ranks=4)

Names are loaded when they are first used, so that what needs no tensors (tables, proofs, pictures) needs no torch.
"""

from importlib import import_module
from typing import Any

from .base.release import __version__ as __version__
from .base.release import unsupported as _unsupported

if _missing := _unsupported():
    import warnings

    warnings.warn(_missing, RuntimeWarning, stacklevel=2)

_NAMES = {
    "base.config": ["Config"],
    "schedule.algorithms": ["algorithm"],
    "calls.collectives.all_gather": ["all_gather", "all_gather_into_tensor", "all_gather_single"],
    "calls.collectives.all_reduce": ["all_reduce"],
    "calls.collectives.all_to_all": ["all_to_all", "all_to_all_single"],
    "calls.collectives.barrier": ["barrier"],
    "calls.collectives.broadcast": ["broadcast"],
    "calls.collectives.gather": ["gather"],
    "calls.collectives.reduce": ["reduce"],
    "calls.collectives.reduce_scatter": ["reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor"],
    "calls.collectives.scan": ["exscan", "scan"],
    "calls.collectives.scatter": ["scatter"],
    "base.errors": [
        "AlgorithmError", "ArgumentError", "DTypeError", "LeftOut", "MismatchError", "NotInitialized", "OutOfMemory",
        "PeerError", "PeerFailed", "PeerGone", "PeerUnreachable", "RankFailed", "UnisonoError", "UsageError",
        "WaitTimeout",
    ],
    "calls.ops": ["ReduceOp", "make_op", "premul_sum"],
    "calls.objects": ["all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"],
    "calls.groups": [
        "destroy_group", "get_global_rank", "get_group_rank", "get_process_group_ranks", "new_group", "split",
    ],
    "calls.coalesced": [
        "all_gather_coalesced", "all_reduce_coalesced", "broadcast_coalesced", "reduce_scatter_coalesced",
    ],
    "calls.models": ["average_gradients", "average_parameters", "broadcast_module", "flatten_"],
    "calls.p2p": [
        "P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "recv_object_list", "send", "send_object_list",
        "sendrecv",
    ],
    "ranks.group.current": ["is_initialized"],
    "ranks.group.group": ["Group"],
    "ranks.group.initialize": ["get_rank", "get_world_size", "init", "shutdown"],
    "ranks.group.shared_tensors": ["empty", "share_"],
    "ranks.launch": ["World", "run", "world"],
    "calls.tracing": ["tracing"],
    "integrations.torch.answer_to": ["answer_to"],
    "integrations.torch.watch": ["watch"],
    "calls.work": ["Work"],
}  # fmt: skip
"""Module -> the public names that it has. `__init__.pyi` has their types."""

_HOME = {name: module for module, names in _NAMES.items() for name in names}

_FACES = {"errors": "errors", "testing": "tools.testing"}
"""Modules that users name, such as `unisono.errors`, and where they are."""

__all__ = [*_HOME, *sorted(_FACES)]  # noqa: PLE0604  the keys are names


def __getattr__(name: str) -> Any:
    if name not in _FACES and name not in _HOME:
        import sys

        # With both names Python says what may have been meant.
        raise AttributeError(f"module 'unisono' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    from .base.python import no_collections

    with no_collections():
        module = import_module(f".{_FACES.get(name) or _HOME[name]}", __name__)
    value = module if name in _FACES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
