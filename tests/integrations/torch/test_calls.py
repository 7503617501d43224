"""Every call of torch.distributed, on distinct data on every rank, and calls that callbacks of other calls make."""

from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.fuzz.api import Torch
from tests.fuzz.draw import TORCH_WAYS
from tests.fuzz.messages import FORMS as OBJECT_FORMS
from tests.fuzz.programs import Barrier, Call, Messages, Objects
from tests.fuzz.ranks import Player
from tests.integrations.torch.test_training import DDP, model, train
from tests.support.matrix import FORMS, REDUCING, Case
from tests.support.torch_ranks import in_process_group

pytestmark = pytest.mark.filterwarnings("default")  # torch's own

SIZES = [1, 3]


def mine(count: int = 5, of: int | None = None) -> torch.Tensor:
    """A rank's values: no two ranks share one."""
    return torch.arange(float(count)) + 100 * (dist.get_rank() if of is None else of)


def all_of(count: int = 5) -> torch.Tensor:
    return torch.stack([mine(count, rank) for rank in range(dist.get_world_size())])


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.shape == expected.shape
    assert torch.equal(got, expected), (got, expected)


@pytest.mark.ranks(*SIZES, hosts="2+1", backend="unisono")
def test_collectives_messages_and_objects() -> None:
    """As a program of the fuzzer. In the second turn, calls take the fast path."""
    size = dist.get_world_size()
    player = Player(api := Torch((), ""), api.world)
    forms = [(form, blocks) for form in FORMS if "scan" not in form for blocks in FORMS[form] if blocks != "unknown"]
    for turn, later, (form, blocks) in product(range(2), (False, True), forms):
        how: Any = {"async_op": later, "root": size - 1, "seed": turn, "exact": True}
        ops = ("sum", "avg", "product", "min", "max", "premul_sum") if form in REDUCING else ("-",)
        player.play(tuple(Call(Case(form, "float32", op, 5, "contiguous", blocks, **how)) for op in ops))
    player.play((Barrier(), Barrier(async_op=True), *(Objects(form, root=size - 1) for form in OBJECT_FORMS)))
    player.play(tuple(Messages(way, "float32", 1000, tag) for tag, way in enumerate(TORCH_WAYS) if size > 1))
    assert player.failures == []


@pytest.mark.ranks(2, backend="unisono")
def test_wait_tensor_waits_for_a_call_in_flight() -> None:
    from torch.distributed import _functional_collectives as functional

    tensor, late = mine(), torch.zeros(1)
    with functional.allow_inflight_collective_as_graph_input_ctx():
        if dist.get_rank():
            dist.recv(late, 0)
        dist.all_reduce(tensor, async_op=True)
    if not dist.get_rank():
        assert torch.equal(tensor, mine())
        dist.send(late, 1)
    same(functional.wait_tensor(tensor), all_of().sum(0))


@pytest.mark.ranks(*SIZES, hosts="2+1", backend="unisono")
def test_sparse_tensors() -> None:
    """Made in inference mode or not, and reduced in it or not, in the background, too."""
    me, size = dist.get_rank(), dist.get_world_size()
    for op, made, inside, later in product((dist.ReduceOp.SUM, dist.ReduceOp.AVG), *[(False, True)] * 3):
        dense, expected = torch.zeros(size + 1, 2), torch.zeros(size + 1, 2)
        dense[me], dense[me + 1] = me + 1.0, 10.0
        for r in range(size):
            expected[r : r + 2] += torch.tensor([[r + 1.0], [10.0]])
        with torch.inference_mode(made):
            tensor = dense.to_sparse(1)
        with torch.inference_mode(inside):
            work = dist.all_reduce(tensor, op, async_op=later)
        assert not later or work.wait()
        assert tensor.is_inference() is made
        same(tensor.to_dense(), expected / (1 if op == dist.ReduceOp.SUM else size))


@pytest.mark.ranks(*SIZES, hosts="2+1", backend="unisono")
def test_coalesced_calls() -> None:
    me, size, cpu = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
    manager = dist.distributed_c10d._coalescing_manager
    for later, device in product((False, True), (None, cpu)):
        tensors = [mine(k + 1) for k in range(4)]
        with manager(device=device, async_ops=later) as pending:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if later:
            pending.wait()
        for k, tensor in enumerate(tensors):
            same(tensor, all_of(k + 1).sum(0))
    outs = [torch.empty(size) for _ in range(3)]
    with manager(device=cpu, async_ops=True) as pending:
        for k, out in enumerate(outs):
            dist.all_to_all_single(out, mine(size) + 10 * k, async_op=True)
    pending.wait()
    for k, out in enumerate(outs):
        same(out, all_of(size)[:, me] + 10 * k)


@pytest.mark.ranks(2, backend="unisono")
def test_future_has_the_tensors_or_raises() -> None:
    tensor = mine()
    assert dist.all_reduce(tensor) is None
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait() is True
    assert (work.is_completed(), work.is_success(), work.exception()) == (True, True, None)
    assert work.get_future().wait()[0] is tensor
    wrong = dist.all_reduce(mine(3 + dist.get_rank()), async_op=True)
    with pytest.raises(RuntimeError, match="disagree"):
        wrong.get_future().wait()
    assert isinstance(wrong.exception(), unisono.MismatchError)
    dist.all_reduce(tensor)


@pytest.mark.parametrize(("size", "hosts"), [(2, ""), (3, ""), (2, "1+1"), (3, "2+1")])
@in_process_group("size", hosts="hosts")
def test_callbacks_of_several_buckets_make_calls(size: int, hosts: str) -> None:
    """Over Gloo this hangs. If one bucket waits for the calls of another, all weights are the same."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    def one_by_one(state: Any, bucket: Any) -> torch.futures.Future[Any]:
        future = powerSGD_hook(state, bucket)
        future.wait()
        return future

    learnt = []
    for hook in (powerSGD_hook, one_by_one):
        state = PowerSGDState(None, 2, start_powerSGD_iter=2, min_compression_rate=1)
        wrapped = DDP(model(5), bucket_cap_mb=0.0005)  # each layer is one
        wrapped.register_comm_hook(state, lambda state, bucket, hook=hook: hook(state, bucket))  # without annotations
        train(wrapped, 8)
        learnt.append(torch.cat([parameter.detach().flatten() for parameter in wrapped.parameters()]).tolist())
        assert len(state.error_dict) == 5  # as many buckets as layers
    assert learnt[0] == learnt[1]
    assert len(set(learnt[0])) > 1000
    of_all = torch.empty(size, len(learnt[0]))
    dist.all_gather_single(of_all, torch.tensor(learnt[0]))
    assert (of_all == of_all[0]).all()
