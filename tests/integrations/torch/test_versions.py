"""What later versions of torch ask of a backend. What a version does not have is tested as far as it goes there."""

import gc
import weakref
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.on_ranks import in_process_group
from tests.support.torch_ranks import options, total
from unisono.integrations.torch.process_group import BACKEND_IN_PYTHON


@pytest.mark.parametrize("shape", [(2, 3), (), (0,)])
@pytest.mark.ranks(1, 2, 3, backend="unisono")
def test_gather_into_one_tensor(shape: tuple[int, ...]) -> None:
    me, size, root = dist.get_rank(), dist.get_world_size(), dist.get_world_size() - 1
    tensor = torch.rand(shape, generator=torch.Generator().manual_seed(me))
    expected = torch.stack([torch.rand(shape, generator=torch.Generator().manual_seed(r)) for r in range(size)])
    for async_op in (False, True):
        given = options(dist.GatherOptions, rootRank=root, asyncOp=async_op)
        for whole in (torch.zeros(size, *shape), torch.zeros(size * tensor.numel())):
            output = whole if me == root else torch.empty(0)
            assert dist.group.WORLD.gather_single(output, tensor, given).wait()
            if me == root:
                assert torch.equal(whole.view_as(expected), expected)
        if hasattr(dist, "gather_single"):
            whole = torch.zeros(size, *shape)
            work = dist.gather_single(tensor, whole if me == root else None, dst=root, async_op=async_op)
            assert not async_op or work.wait()
            if me == root:
                assert torch.equal(whole, expected)


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
    with pytest.raises(unisono.ArgumentError, match=r"other: torch .* cannot create this backend"):
        dist.new_group(backend="cpu:unisono,cuda:other")
    if not dist.is_nccl_available():
        with pytest.raises(unisono.ArgumentError, match=r"nccl: torch .* was built without NCCL"):
            dist.new_group(backend="cpu:unisono,cuda:nccl")


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
def test_batch_p2p_operator(ranks: int) -> None:
    gc.collect()  # torch alone holds the backend
    me = dist.get_rank()
    operators, name = import_module("torch.ops")._c10d_functional, dist.group.WORLD.group_name
    there, back = (me + 1) % ranks, (me - 1) % ranks
    tensors = [torch.full((3,), float(me)), torch.zeros(3)]
    outputs = operators.batch_p2p_ops(["isend", "irecv"], [there, back], [0, 0], tensors, name)
    for output in outputs:
        operators.wait_tensor(output)
    assert torch.equal(tensors[1], torch.full((3,), float(back)))


@pytest.mark.ranks(1, 2, 3, backend="unisono")
def test_gather_into_a_tensor_that_is_there(ranks: int) -> None:
    """inductor makes such calls of gathers that it joins; other groups have torch's own kernel."""
    me = dist.get_rank()
    operators = import_module("torch.ops")._c10d_functional
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        out = torch.zeros(2 * ranks)
        operators.wait_tensor(
            operators.all_gather_into_tensor_out(torch.full((2,), 1.0 + me), ranks, group.group_name, out=out)
        )
        assert out.tolist() == [1.0 + rank for rank in range(ranks) for _ in range(2)]


@pytest.mark.ranks(2, backend="unisono")
def test_compiled_exchange_moves_tensors() -> None:
    def exchange(mine: torch.Tensor, other: int) -> torch.Tensor:
        theirs = torch.zeros(3)
        ends = [dist.P2POp(dist.isend, 2 * mine, other), dist.P2POp(dist.irecv, theirs, other)]
        for work in dist.batch_isend_irecv(ends):
            work.wait()
        return 10 * theirs

    me = dist.get_rank()
    with import_module("torch._dynamo.config").patch(enable_p2p_compilation=True):
        compiled = torch.compile(exchange, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(torch.full((3,), 1.0 + me), 1 - me), torch.full((3,), 20.0 * (2 - me)))


@pytest.mark.skipif(not BACKEND_IN_PYTHON, reason="a backend is written in Python from torch 2.14 on")
@pytest.mark.ranks(2, backend="unisono")
def test_backend_ends_with_its_group() -> None:
    group: Any = dist.new_group([0, 1])
    backend = weakref.ref(group._get_backend(torch.device("cpu")))
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
    torch_c10d = dist.distributed_c10d
    recorders = torch_c10d._FR_SELF_RECORDING_BACKENDS
    recorders.discard("gloo")  # as NCCL, which keeps no record itself
    try:
        group = dist.new_group(backend="cpu:unisono,cuda:gloo")
    finally:
        recorders.add("gloo")
    assert group in torch_c10d._world.pg_flight_recorder_hooks
    assert total(group) == 11.0
