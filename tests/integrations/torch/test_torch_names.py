"""Every name of torch's groups, backends, works and their options: who serves it, so that a new name is noticed."""

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from tests.support.on_ranks import in_process_group
from unisono.integrations.torch.answers import REFUSED
from unisono.integrations.torch.process_group import UnisonoProcessGroup
from unisono.integrations.torch.reconfigure import Reconfigurable
from unisono.integrations.torch.to_torch import TorchWork

TORCHS = {
    "BackendType", "CUSTOM", "GLOO", "MPI", "NCCL", "Options", "UCC", "UNDEFINED", "XCCL", "_get_backend_name", "_id",
    "_register_backend", "_set_default_backend", "_set_group_desc", "_set_group_name", "bound_device_id", "boxed",
    "get_backend", "group_desc", "group_name", "register_post_hook", "register_pre_hook", "unbox",
    "unregister_post_hook", "unregister_pre_hook", "use_pg_for_symm_mem_rendezvous",
}  # fmt: skip
"""Our group has torch's."""

TORCHS_OF_A_WORK = {"_get_duration", "block_current_stream", "boxed", "get_future_result", "unbox"}
"""Of these, torch refuses the duration and the future of a result, for all backends but NCCL."""

OF_OPTIONS = {"_timeout", "backend", "enable_reconfigure", "global_ranks_in_group", "group_name"}
"""Our group takes the timeout of a call, or that of `init_process_group`, and its `enable_reconfigure`."""


def names_of(kind: Any) -> set[str]:
    return {name for name in dir(kind) if name not in ("__module__", "_pybind11_conduit_v1_")} - set(dir(object))


def own(kind: Any) -> set[str]:
    """The names that our class does not leave to torch's."""
    return {name for base in kind.__mro__ if base.__module__.startswith("unisono.") for name in vars(base)}


TABLE = [
    (c10d.ProcessGroup, own(UnisonoProcessGroup) | TORCHS | set(REFUSED)),
    (c10d.Backend, own(UnisonoProcessGroup) | TORCHS | set(REFUSED)),
    (c10d.Work, own(TorchWork) | TORCHS_OF_A_WORK),
    (c10d.Backend.Options, OF_OPTIONS),
]


@pytest.mark.parametrize(("kind", "known"), TABLE, ids=lambda one: getattr(one, "__name__", ""))
def test_every_name_is_known(kind: Any, known: set[str]) -> None:
    assert names_of(kind) <= known, "decide who serves these new names of torch, and add them to a list above"


@pytest.mark.ranks(1, backend="unisono")
def test_refused_methods_say_what_to_do() -> None:
    group: Any = dist.group.WORLD
    supports_window = getattr(dist.distributed_c10d, "_supports_window", lambda _: False)
    assert not supports_window(group)
    for name in REFUSED.keys() - vars(Reconfigurable).keys():
        with pytest.raises(RuntimeError, match=f"Backend unisono does not support {name}: .*[a-z]"):
            getattr(group, name)(None)


@pytest.mark.parametrize("backend", ["unisono", "gloo"])
@in_process_group(2, "backend", named=range(2))
def test_answers_to_rare_questions(backend: str) -> None:
    group: Any = dist.group.WORLD
    inner = group._get_backend(torch.device("cpu"))
    assert inner.get_error() == c10d.ErrorType.SUCCESS
    assert not inner._supports_time_estimate
    assert not group._has_hooks()
    kinds: Any = dist.Backend.backend_type_map
    assert group._backend_id(kinds[backend]) == id(group)
    with pytest.raises(RuntimeError, match="backend type"):
        group._backend_id(c10d.ProcessGroup.BackendType.MPI)
    work = dist.all_reduce(torch.ones(3), async_op=True)
    group._wait_for_pending_works()
    assert work.is_completed()
    inner.eager_connect_single_device(torch.device("cpu"))
    inner._set_group_uid("any")
    group._enable_collectives_timing()
    options = dist.new_group([1, 0]).options
    assert (options.global_ranks_in_group, options.backend) == ([0, 1], backend)
    with pytest.warns(UserWarning, match="Use set_timeout"):
        group._add_ephemeral_timeout(timedelta(seconds=1))


@pytest.mark.parametrize("backend", ["unisono", "gloo"])
@in_process_group(2, "backend", named=range(2))
def test_works_know_their_calls(backend: str) -> None:
    group: Any = dist.group.WORLD
    dist.barrier()
    for turn in range(2):  # the first call goes to another thread, the second ends at once
        works = [dist.all_reduce(torch.ones(3), async_op=True), dist.barrier(async_op=True)]
        before = 1 + 2 * turn
        assert [work._get_sequence_number() for work in works] == [before + 1, before + 2]
        for work in works:
            work.wait()
        assert group._get_sequence_number_for_group() == before + 2
        assert [work._get_op_type() for work in works] == [1, 15]  # ALLREDUCE, BARRIER
        assert [work.timeout for work in works] == [timedelta(seconds=60)] * 2
    opts = c10d.BroadcastOptions()
    opts.timeout, opts.asyncOp = timedelta(seconds=7), True
    work = group.broadcast([torch.ones(3)], opts)
    assert work.timeout == timedelta(seconds=7)
    work.wait()
    opts.asyncOp = False
    with pytest.raises(RuntimeError, match="async_op=True"):
        _ = group.broadcast([torch.ones(3)], opts).timeout


@pytest.mark.filterwarnings("ignore:.*_set_pg_timeout:FutureWarning")
@pytest.mark.parametrize("function", ["_set_pg_timeout", "set_timeout"])
@pytest.mark.parametrize("backend", ["unisono", "gloo"])
@in_process_group(2, "backend", named=range(2))
def test_shorter_timeout_holds_at_once(backend: str, function: str) -> None:
    if not hasattr(dist.distributed_c10d, function):
        function = "_set_pg_timeout"
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)  # the next call takes the fast path
    getattr(dist.distributed_c10d, function)(timedelta(seconds=0.3))
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match="rank 1") as late:
            dist.all_reduce(tensor)
        assert late.value.waited_s < 30
        store.set("seen", "1")
    else:
        store.wait(["seen"])


@pytest.mark.parametrize("size", [1, 2])
@in_process_group("size", "gloo", named=range(2))
def test_local_tensors_stay_local(size: int) -> None:
    from torch.distributed._local_tensor import LocalTensor, LocalTensorMode

    with LocalTensorMode(size):
        tensor = LocalTensor({rank: torch.tensor([rank + 1.0]) for rank in range(size)})
        dist.all_reduce(tensor)
        assert [part.item() for part in tensor._local_tensors.values()] == [size * (size + 1) / 2] * size
