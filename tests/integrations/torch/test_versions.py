"""What versions of torch ask of groups, backends, works and options: each name, so that a new one is noticed.

What a version does not have is tested as far as it goes there.
"""

import gc
import weakref
from datetime import timedelta
from importlib import import_module
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import unisono
from tests.support.torch_ranks import in_process_group, options, total
from unisono.integrations.torch.answers import REFUSED
from unisono.integrations.torch.process_group import BACKEND_IN_PYTHON, UnisonoProcessGroup
from unisono.integrations.torch.reconfigure import Reconfigurable
from unisono.integrations.torch.to_torch import TorchWork

both_names = pytest.mark.parametrize("backend", ["unisono", "gloo"])

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


@both_names
@in_process_group(2, "backend", named=range(2))
def test_answers_to_rare_questions(backend: str) -> None:
    group: Any = dist.group.WORLD
    inner, kinds, cpu = group._get_backend(torch.device("cpu")), dist.Backend.backend_type_map, torch.device("cpu")
    assert inner.get_error() == c10d.ErrorType.SUCCESS
    assert not inner._supports_time_estimate
    assert not group._has_hooks()
    assert group._backend_id(kinds[backend]) == id(group)
    with pytest.raises(RuntimeError, match="backend type"):
        group._backend_id(c10d.ProcessGroup.BackendType.MPI)
    work = dist.all_reduce(torch.ones(3), async_op=True)
    group._wait_for_pending_works()
    assert work.is_completed()
    inner.eager_connect_single_device(cpu)
    inner._set_group_uid("any")
    group._enable_collectives_timing()
    pair = dist.new_group([1, 0]).options
    assert (pair.global_ranks_in_group, pair.backend) == ([0, 1], backend)


@both_names
@in_process_group(2, "backend", named=range(2))
def test_works_know_their_calls(backend: str) -> None:
    group: Any = dist.group.WORLD
    dist.barrier()
    for before in (1, 3):  # the first call goes to another thread, the second ends at once
        works = [dist.all_reduce(torch.ones(3), async_op=True), dist.barrier(async_op=True)]
        told = [(work._get_sequence_number(), work._get_op_type(), work.timeout.seconds) for work in works]
        assert told == [(before + 1, 1, 60), (before + 2, 15, 60)]  # ALLREDUCE, BARRIER
        assert all(work.wait() for work in works)
        assert group._get_sequence_number_for_group() == before + 2
    opts = options(c10d.BroadcastOptions, timeout=timedelta(seconds=7), asyncOp=True)
    work = group.broadcast([torch.ones(3)], opts)
    assert work.timeout == timedelta(seconds=7)
    work.wait()
    opts.asyncOp = False
    with pytest.raises(RuntimeError, match="async_op=True"):
        _ = group.broadcast([torch.ones(3)], opts).timeout


@pytest.mark.filterwarnings("ignore:.*_set_pg_timeout:FutureWarning")
@pytest.mark.parametrize("function", ["_set_pg_timeout", "set_timeout"])
@both_names
@in_process_group(2, "backend", named=range(2))
def test_shorter_timeout_holds_at_once(backend: str, function: str) -> None:
    if not hasattr(dist.distributed_c10d, function):
        function = "_set_pg_timeout"
    group: Any = dist.group.WORLD
    tensor = torch.ones(3)
    dist.all_reduce(tensor)  # the next call takes the fast path
    getattr(dist.distributed_c10d, function)(timedelta(seconds=0.3))
    assert group.options._timeout == timedelta(seconds=0.3)
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match="rank 1") as late:
            dist.all_reduce(tensor)
        assert late.value.waited_s < 30  # type: ignore[attr-defined]
    unisono.barrier()


@pytest.mark.parametrize("size", [1, 2])
@in_process_group("size", "gloo", named=range(2))
def test_local_tensors_stay_local(size: int) -> None:
    from torch.distributed._local_tensor import LocalTensor, LocalTensorMode

    with LocalTensorMode(size):
        tensor = LocalTensor({rank: torch.tensor([rank + 1.0]) for rank in range(size)})
        dist.all_reduce(tensor)
        assert [part.item() for part in tensor._local_tensors.values()] == [size * (size + 1) / 2] * size


@pytest.mark.parametrize("shape", [(2, 3), (), (0,)])
@pytest.mark.ranks(1, 2, 3, backend="unisono")
def test_gather_into_one_tensor(shape: tuple[int, ...]) -> None:
    me, size, root = dist.get_rank(), dist.get_world_size(), dist.get_world_size() - 1
    parts = [torch.rand(shape, generator=torch.Generator().manual_seed(rank)) for rank in range(size)]
    for async_op, form in product((False, True), ((size, *shape), (size * parts[0].numel(),))):
        whole, given = torch.zeros(form), options(dist.GatherOptions, rootRank=root, asyncOp=async_op)
        output = whole if me == root else torch.empty(0)
        assert dist.group.WORLD.gather_single(output, parts[me], given).wait()
        if me == root:
            assert torch.equal(whole.view(size, *shape), torch.stack(parts))
        if hasattr(dist, "gather_single"):
            whole = torch.zeros(size, *shape)
            work = dist.gather_single(parts[me], whole if me == root else None, dst=root, async_op=async_op)
            assert not async_op or work.wait()
            if me == root:
                assert torch.equal(whole, torch.stack(parts))


@pytest.mark.parametrize("words", ["and 6 elements", "contiguous"])
@pytest.mark.ranks(2, backend="unisono")
def test_invalid_gather_output_is_refused(words: str) -> None:
    output = torch.empty(3, 2).t() if words == "contiguous" else torch.empty(5)
    kind = unisono.MismatchError if dist.get_rank() else unisono.ArgumentError
    with pytest.raises(kind, match=words):
        dist.group.WORLD.gather_single(output, torch.ones(3), options(dist.GatherOptions, asyncOp=False))
    dist.barrier()  # the group is as good as before


@pytest.mark.parametrize(("backend", "named"), [("unisono", None), ("gloo", range(2))])
@in_process_group(2, "backend", named="named")
def test_another_backend_for_another_device(backend: str, named: range | None) -> None:
    """As "cpu:gloo,cuda:nccl"; a backend without communication stands for NCCL, which needs GPUs."""
    import_module("torch.testing._internal.distributed.fake_pg")  # registers "fake" where torch itself has not
    group: Any = dist.new_group(backend=f"cpu:{backend},cuda:fake")
    assert dist.get_backend_config(group) == f"cpu:{backend},cuda:fake"
    assert "Fake" in type(group._get_backend(torch.device("cuda"))).__name__
    assert total(group) == 11.0
    for_gpus: Any = dist.new_group(backend="cuda:gloo,cpu:unisono")
    kinds = {"unisono": "UnisonoProcessGroup", "gloo": "NamedGloo"}
    assert [type(one).__name__ for one in (group, for_gpus)] == [kinds[backend], kinds["unisono"]]
    assert type(for_gpus._get_backend(torch.device("cuda"))) is torch._C._distributed_c10d.ProcessGroupGloo
    refused = {"cpu:gloo,cuda:unisono": "takes only CPU tensors", "cpu:unisono,cuda:other": "other: torch .* cannot"}
    if not dist.is_nccl_available():
        refused["cpu:unisono,cuda:nccl"] = "nccl: torch .* was built without NCCL"
    for name, words in refused.items():
        with pytest.raises(unisono.ArgumentError, match=words):
            dist.new_group(backend=name)
        dist.barrier()  # else who is refused first leaves while the other still connects by Gloo


@pytest.mark.ranks(1, backend="unisono")
def test_exchanges_on_another_device() -> None:
    """torch's class looks up these methods by an earlier name, too: it must not come back to ours."""
    group: Any = dist.new_group(backend="cpu:unisono,cuda:gloo")
    with import_module("torch._subclasses.fake_tensor").FakeTensorMode():
        one, other = torch.empty(4, device="cuda"), torch.empty(4, device="cuda")
        dist.all_to_all_single(one, other, group=group)
        for call in (group.all_gather_single_coalesced, group.reduce_scatter_single_coalesced):
            with pytest.raises(RuntimeError, match=r"c10d\.\w+_coalesced_"):  # torch's operator, for which no fake is
                call([one], [other])


@pytest.mark.ranks(1, 2, 3, backend="unisono")
def test_operators_that_call_a_backend(ranks: int) -> None:
    """inductor makes such calls of gathers that it joins; other groups have torch's own kernel."""
    gc.collect()  # torch alone holds the backend
    me = dist.get_rank()
    operators, name = import_module("torch.ops")._c10d_functional, dist.group.WORLD.group_name
    there, back = (me + 1) % ranks, (me - 1) % ranks
    tensors = [torch.full((3,), float(me)), torch.zeros(3)]
    outputs = operators.batch_p2p_ops(["isend", "irecv"], [there, back], [0, 0], tensors, name)
    for output in outputs:
        operators.wait_tensor(output)
    assert torch.equal(outputs[1], torch.full((3,), float(back)))
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        out, mine = torch.zeros(2 * ranks), torch.full((2,), 1.0 + me)
        operators.wait_tensor(operators.all_gather_into_tensor_out(mine, ranks, group.group_name, out=out))
        assert out.tolist() == [1.0 + rank for rank in range(ranks) for _ in range(2)]


@pytest.mark.skipif(not BACKEND_IN_PYTHON, reason="a backend is written in Python from torch 2.14 on")
@pytest.mark.ranks(2, backend="unisono")
def test_backend_ends_with_its_group() -> None:
    group: Any = dist.new_group([0, 1])
    backend = weakref.ref(group.backend)
    assert type(backend()).__name__ == "UnisonoBackend"
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert backend() is None


@pytest.mark.skipif(
    not hasattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS"), reason="torch 2.15 was the first to record calls"
)
@pytest.mark.ranks(2, backend="unisono")
def test_calls_of_another_backend_are_recorded() -> None:
    torch_c10d: Any = dist.distributed_c10d
    recorders = torch_c10d._FR_SELF_RECORDING_BACKENDS
    recorders.discard("gloo")  # as NCCL, which keeps no record itself
    try:
        group = dist.new_group(backend="cpu:unisono,cuda:gloo")
    finally:
        recorders.add("gloo")
    assert group in torch_c10d._world.pg_flight_recorder_hooks
    assert total(group) == 11.0
