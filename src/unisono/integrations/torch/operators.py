"""Two operators of torch call the backend of a group in C++. For our groups, they now call the group.

From torch 2.14 on our groups have a backend that these operators find. Tensors of other devices, and other groups, go
to torch's own kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C import DispatchKey
from torch._C import _distributed_c10d as c10d

from .group_methods import Calls

_NAMESPACE = "_c10d_functional"
_library: Any = None


def find_our_groups() -> None:
    """Let these operators on CPU tensors call our groups. Idempotent."""
    global _library  # noqa: PLW0603  the kernels live as long as this object
    if _library is None:
        _library = torch.library.Library(_NAMESPACE, "IMPL")  # type: ignore[no-untyped-call]
        _library.impl("all_gather_into_tensor_out", _all_gather_into_tensor_out, "CPU")
        _library.impl("batch_p2p_ops", _batch_p2p_ops, "CPU")


def _all_gather_into_tensor_out(shard: Any, group_size: int, group_name: Any, *, out: Any) -> Any:
    group = _ours(group_name)
    if group is None:
        return _torchs("all_gather_into_tensor_out", shard, group_size, group_name, out=out)
    opts = c10d.AllgatherOptions()
    opts.asyncOp = True
    c10d._register_work(out, group.all_gather_single(out, shard, opts))  # noqa: SLF001
    return out


def _batch_p2p_ops(kinds: list[str], peers: list[int], tags: list[int], tensors: Any, group_name: Any) -> Any:
    group = _ours(group_name)
    if group is None:
        return _torchs("batch_p2p_ops", kinds, peers, tags, tensors, group_name)
    cpu = torch.device("cpu")
    group._start_coalescing(cpu)  # noqa: SLF001
    try:
        for kind, peer, tag, tensor in zip(kinds, peers, tags, tensors, strict=True):
            (group.send if kind == "isend" else group.recv)([tensor], peer, tag)
    finally:
        work = group._end_coalescing(cpu)  # noqa: SLF001
    results = [tensor if kind == "irecv" else tensor.new_empty(0) for kind, tensor in zip(kinds, tensors, strict=True)]
    for result in results:
        c10d._register_work(result, work)  # noqa: SLF001
    return results


def _ours(group_name: Any) -> Any:
    """The group of this name, if it is ours; else None."""
    resolve: Any = c10d._resolve_process_group  # noqa: SLF001
    group = resolve(group_name) if isinstance(group_name, str) else group_name
    return group if isinstance(group, Calls) else None


def _torchs(name: str, *args: Any, **options: Any) -> Any:
    """Call torch's own kernel."""
    operator = getattr(getattr(torch.ops, _NAMESPACE), name).default
    return operator._op_dk(DispatchKey.CompositeExplicitAutograd, *args, **options)  # noqa: SLF001
