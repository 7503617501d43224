"""Every call of torch.distributed, on distinct data on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.torch_ranks import TorchRanks

SIZES = [1, 3]


def mine(count: int = 5, of: int | None = None) -> torch.Tensor:
    """A rank's values: no two ranks share one."""
    return torch.arange(float(count)) + 100 * (dist.get_rank() if of is None else of)


def all_of(count: int = 5) -> torch.Tensor:
    return torch.stack([mine(count, rank) for rank in range(dist.get_world_size())])


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.shape == expected.shape
    assert torch.equal(got, expected), (got, expected)


@pytest.mark.ranks(2, backend="unisono")
def test_a_call_in_flight_is_waited_for_by_its_tensor() -> None:
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


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("async_op", [False, True])
def test_calls_on_whole_tensors(ranks: TorchRanks, size: int, async_op: bool) -> None:
    def work() -> None:
        me, everybody, last = dist.get_rank(), all_of(), size - 1

        def over(work: Any) -> None:
            assert (work is not None) == async_op
            if work is not None:
                assert work.wait() is True
                assert work.is_completed()
                assert work.is_success()
                assert work.exception() is None

        for _ in range(2):  # the second call takes the fast path
            for op, expected in (
                (dist.ReduceOp.SUM, everybody.sum(0)),
                (dist.ReduceOp.AVG, everybody.mean(0)),
                (dist.ReduceOp.MAX, everybody.amax(0)),
                (dist.ReduceOp.MIN, everybody.amin(0)),
                (dist.ReduceOp.PRODUCT, everybody.prod(0)),
            ):
                tensor = mine()
                over(dist.all_reduce(tensor, op, async_op=async_op))
                assert torch.allclose(tensor, expected), op
            tensor = mine()
            over(dist.broadcast(tensor, last, async_op=async_op))
            same(tensor, mine(of=last))
            tensor = mine()
            over(dist.reduce(tensor, last, async_op=async_op))
            same(tensor, everybody.sum(0) if me == last else mine())
            for gather in (dist.all_gather_into_tensor, dist._all_gather_base):
                whole = torch.empty(size, 5)
                over(gather(whole, mine(), async_op=async_op))
                same(whole, everybody)
            for scatter in (dist.reduce_scatter_tensor, dist._reduce_scatter_base):
                block = torch.empty(2)
                over(scatter(block, mine(2 * size), async_op=async_op))
                same(block, all_of(2 * size).sum(0)[2 * me : 2 * me + 2])
            mixed = torch.empty(2 * size)
            over(dist.all_to_all_single(mixed, mine(2 * size), async_op=async_op))
            same(mixed, all_of(2 * size)[:, 2 * me : 2 * me + 2].flatten())
            over(dist.barrier(async_op=async_op))

    ranks(size)(work)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("async_op", [False, True])
def test_calls_on_lists_of_any_sizes(ranks: TorchRanks, size: int, async_op: bool) -> None:
    def work() -> None:
        me, everybody = dist.get_rank(), range(size)

        def over(work: Any) -> None:
            if async_op:
                work.wait()

        outs = [torch.empty(r + 1) for r in everybody]
        over(dist.all_gather(outs, mine(me + 1), async_op=async_op))
        for r in everybody:
            same(outs[r], mine(r + 1, r))
        outs = [torch.empty(4) for _ in everybody]
        over(dist.gather(mine(4), outs if me == size - 1 else None, size - 1, async_op=async_op))
        if me == size - 1:
            same(torch.stack(outs), all_of(4))
        out = torch.empty(3)
        blocks = [mine(3, 10 + r) for r in everybody]
        over(dist.scatter(out, blocks if me == 0 else None, 0, async_op=async_op))
        same(out, mine(3, 10 + me))
        over(dist.reduce_scatter(out, [mine(3) + r for r in everybody], async_op=async_op))
        same(out, all_of(3).sum(0) + size * me)
        outs = [torch.empty(r + 1) for r in everybody]
        over(dist.all_to_all(outs, [mine(me + 1) + q for q in everybody], async_op=async_op))
        for r in everybody:
            same(outs[r], mine(r + 1, r) + me)
        out = torch.empty(sum(r + 1 for r in everybody))
        given = torch.cat([mine(me + 1) + q for q in everybody])
        over(dist.all_to_all_single(out, given, [r + 1 for r in everybody], [me + 1] * size, async_op=async_op))
        same(out, torch.cat([mine(r + 1, r) + me for r in everybody]))

    ranks(size)(work)


@pytest.mark.parametrize("size", SIZES)
def test_sparse_tensors_and_ops_with_a_factor(ranks: TorchRanks, size: int) -> None:
    def work() -> None:
        me = dist.get_rank()
        for op, divisor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, size)):
            dense = torch.zeros(size + 1, 2)
            dense[me], dense[me + 1] = me + 1.0, 10.0
            expected = torch.zeros(size + 1, 2)
            for r in range(size):
                expected[r] += r + 1.0
                expected[r + 1] += 10.0
            tensor = dense.to_sparse(1)
            dist.all_reduce(tensor, op)
            same(tensor.to_dense(), expected / divisor)
        tensor = mine()
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(2.0))
        same(tensor, 2 * all_of().sum(0))

    ranks(size)(work)


@pytest.mark.parametrize("size", SIZES)
def test_coalesced_calls(ranks: TorchRanks, size: int) -> None:
    def work() -> None:
        me = dist.get_rank()
        manager = dist.distributed_c10d._coalescing_manager
        cpu = torch.device("cpu")
        for options in ({}, {"async_ops": True}, {"device": cpu}, {"device": cpu, "async_ops": True}):
            tensors = [mine(k + 1) for k in range(4)]
            with manager(**options) as pending:
                for tensor in tensors:
                    dist.all_reduce(tensor)
            if "async_ops" in options:
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
        lists = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
        with pytest.warns(FutureWarning):
            dist.all_gather_coalesced(lists, [mine(2), mine(3) + 0.5])
        for r in range(size):
            same(lists[r][1], mine(3, r) + 0.5)

    ranks(size)(work)


@pytest.mark.parametrize("size", [2, 3])
def test_messages(ranks: TorchRanks, size: int) -> None:
    def work() -> None:
        me, after, before = dist.get_rank(), (dist.get_rank() + 1) % size, (dist.get_rank() - 1) % size
        got = torch.empty(1000)
        for work in dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, mine(1000), after),
                dist.P2POp(dist.irecv, got, before),
            ]
        ):
            work.wait()
        same(got, mine(1000, before))
        dist.barrier()
        if me:
            dist.send(mine(3), 0, tag=7)
        else:
            sources = set()
            for _ in range(size - 1):
                got = torch.empty(3)
                source = dist.recv(got, tag=7)
                same(got, mine(3, source))
                sources.add(source)
            assert sources == set(range(1, size))
        things: list[Any] = [None] * size
        dist.all_gather_object(things, {"rank": me, "text": "x" * me})
        assert [thing["rank"] for thing in things] == list(range(size))
        things = [me, "from", {"rank": me}]
        dist.broadcast_object_list(things, 1)
        assert things == [1, "from", {"rank": 1}]
        things = [None] * size
        dist.gather_object(("of", me), things if me == 1 else None, 1)
        assert things == ([("of", r) for r in range(size)] if me == 1 else [None] * size)
        dist.scatter_object_list(out := [None], [f"for {r}" for r in range(size)] if me == 0 else None, 0)
        assert out == [f"for {me}"]

    ranks(size)(work)


@pytest.mark.ranks(2, backend="unisono")
def test_a_future_has_the_tensors_or_raises() -> None:
    tensor = mine()
    future = dist.all_reduce(tensor, async_op=True).get_future()
    assert future.wait()[0] is tensor
    wrong = dist.all_reduce(mine(3 + dist.get_rank()), async_op=True)
    with pytest.raises(RuntimeError, match="disagree"):
        wrong.get_future().wait()
    assert isinstance(wrong.exception(), unisono.MismatchError)
    dist.all_reduce(tensor)


@pytest.mark.ranks(2, backend="unisono")
def test_a_callback_may_wait_for_a_call_of_its_own() -> None:
    again, lock = torch.ones(3), []

    def callback(_: Any) -> None:
        lock.append(dist.all_reduce(again, async_op=True).get_future().wait())

    dist.all_reduce(mine(1 << 20), async_op=True).get_future().then(callback).wait()
    same(again, torch.full((3,), 2.0))
    assert len(lock) == 1


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_one_tensor_twice_in_all_reduce_coalesced(ranks: TorchRanks, size: int, async_op: bool) -> None:
    def work() -> list[Any]:
        found = []
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            tensor, other = mine(), mine(3)
            given = [tensor, other, tensor] if dist.get_rank() else [tensor, other, mine()]  # each rank for itself
            made = dist.all_reduce_coalesced(given, op, async_op=async_op)
            if async_op:
                made.wait()
            found.append([tensor.tolist(), other.tolist()])
        return found

    assert ranks(size)(work) == ranks(size, "gloo")(work)
