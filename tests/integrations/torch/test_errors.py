"""Errors through torch.distributed, and what a profiler sees: whom they name, where, in which of torch's words."""

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.torch_ranks import detail, in_process_group


@pytest.mark.ranks(2, backend="unisono")
def test_error_before_a_call_counts_as_the_call() -> None:
    me, tensor = dist.get_rank(), torch.ones(3)
    for call in (
        lambda: dist.group.WORLD.allreduce([tensor] * (2 - me)).wait(),
        lambda: dist.all_gather_coalesced([[torch.empty(3)] for _ in range(1 + me)], [torch.ones(3)]),
        lambda: dist.all_reduce(torch.eye(3).to_sparse(), dist.ReduceOp.SUM if me else dist.ReduceOp.MAX),
        lambda: dist.all_gather([torch.empty(3)] * 2 if not me else [torch.empty(3), torch.empty(3)], tensor),
    ):
        with pytest.raises(unisono.MismatchError if me else unisono.ArgumentError):
            call()
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3


def coalesced(count: int) -> None:
    with dist._coalescing_manager():
        dist.all_reduce(torch.ones(count))


@pytest.mark.parametrize(
    "call",
    [
        lambda n: dist.all_gather_into_tensor(torch.empty(2 * n), torch.ones(n)),
        lambda n: dist.reduce_scatter_tensor(torch.empty(n), torch.ones(2 * n)),
        lambda n: dist.all_reduce_coalesced([torch.ones(n)]),
        lambda n: dist.all_gather_coalesced([[torch.empty(n)], [torch.empty(n)]], [torch.ones(n)]),
        lambda n: dist._all_gather_base(torch.empty(2 * n), torch.ones(n)),
        lambda n: dist._reduce_scatter_base(torch.empty(n), torch.ones(2 * n)),
        coalesced,
    ],
)
@pytest.mark.ranks(2, backend="unisono")
def test_users_line_is_found_through_wrappers(call: Callable[[int], object]) -> None:
    with pytest.raises(unisono.MismatchError) as caught:
        call(5 + dist.get_rank())
    assert caught.value.calls[dist.get_rank()].where.split(":")[0] == __file__


@pytest.mark.ranks(2, backend="unisono")
def test_tensors_without_elements_of_their_own() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._functional_collectives import all_reduce
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.all_reduce(torch.ones(3))  # the fast path knows such calls
    with FakeTensorMode():
        fake = torch.ones(3)
    mesh = init_device_mesh("cpu", (2,))
    parts = distribute_tensor(torch.ones(6), mesh, [Shard(0)])
    for tensor, words in ((fake, "fake"), (torch.ones(3, device="meta"), "meta"), (parts, "to_local")):
        with pytest.raises(unisono.ArgumentError, match=words):
            dist.group.WORLD.allreduce([tensor])
    promised = all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    dist.all_reduce(promised)
    assert promised.sum().item() == 12.0


@pytest.mark.parametrize(("backend", "named"), [("unisono", None), ("gloo", range(2))])
@in_process_group(2, "backend", named="named")
def test_profiler_sees_calls(backend: str, named: range | None) -> None:
    from torch.profiler import ProfilerActivity, profile

    pair, peer = [torch.ones(2), torch.ones(2)], 1 - dist.get_rank()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        dist.all_reduce(torch.ones(3))
        dist.all_gather_single(torch.empty(2), torch.ones(1))
        dist.all_to_all([torch.ones(2), torch.ones(2)], pair)
        dist.all_reduce_coalesced([torch.ones(4), torch.ones(5)])
        dist.isend(torch.ones(6), peer)
        dist.group.WORLD.recv_anysource([torch.ones(6)], 0).wait()
        with dist.record_comm("step"):  # a name of the program's, too
            dist.all_reduce(torch.ones(7))
            dist.all_reduce(torch.ones(7), async_op=True).wait()
            dist.barrier()
    events = [(event.name, event.input_shapes) for event in seen.events() if event.name.startswith(f"{backend}:")]
    names: tuple[str, ...] = ("all_reduce", "all_gather", "all_to_all", "all_reduce", "send", "recvAnySource")
    names += "all_reduce", "all_reduce", "barrier"
    shapes: list[Any] = [[[3]], [[1]], [[2], [2]], [[4], [5]], [[6]], [[6]], [[7]], [[7]], []]
    assert events == [(f"{backend}:{name}", shape) for name, shape in zip(names, shapes, strict=True)]
    assert [event.name for event in seen.events()].count("step") == 3


@pytest.mark.parametrize(("shape", "sparse"), [((9, 4), 1), ((5, 4), 2), ((5, 6), 1), ((5,), 1)])
@pytest.mark.ranks(2, backend="unisono")
def test_sparse_tensors_of_other_shapes(shape: tuple[int, ...], sparse: int) -> None:
    tensor = torch.ones(shape).to_sparse(sparse) if dist.get_rank() else torch.ones(5, 4).to_sparse(1)
    before = tensor.to_dense()
    with pytest.raises(unisono.ArgumentError, match=r"on all ranks: .*\[5, 4\] with 1 sparse on rank 0"):
        dist.all_reduce(tensor)
    assert torch.equal(tensor.to_dense(), before)


SHORT = timedelta(seconds=0.3)
WAITING = (
    "Rank {} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. "
    "Please check rank 0 logs for faulty rank."
)


@pytest.mark.ranks(2, backend="unisono")
def test_timeout_names_what_is_missing() -> None:
    """Before each error the hooks for aborts run."""
    group: Any = dist.new_group(timeout=SHORT)
    tensor, hooks = torch.ones(3), list[str]()
    group.register_abort_hook(1, lambda: hooks.append("late"))
    calls: list[Callable[[], Any]] = [
        lambda: dist.recv(tensor, 1, group=group),
        lambda: group.recv_anysource([tensor], 0).wait(),
        lambda: group.recv([tensor], 1, 0).wait(timedelta(milliseconds=20)),
        lambda: dist.all_reduce(tensor, group=group),
        lambda: dist.all_reduce(tensor, group=group, async_op=True).wait(),
    ]
    for call in calls if dist.get_rank() == 0 else ():
        with pytest.raises(RuntimeError, match=r"Find out what delays(.|\n)* Timed out waiting"):
            call()
        assert hooks == ["late"]
        hooks.clear()
    unisono.barrier()


@pytest.mark.parametrize(
    ("late", "all_ranks", "named"), [((1, 2), False, "Rank 1"), ((1, 2), True, "Ranks 1, 2"), ((0,), False, "")]
)
@pytest.mark.ranks(4, hosts="2x2", backend="unisono")
def test_ranks_that_miss_a_monitored_barrier(late: tuple[int, ...], all_ranks: bool, named: str) -> None:
    me = dist.get_rank()
    unisono.barrier()
    if me in late:
        unisono.barrier()  # they come too late
    if me or 0 not in late:
        with pytest.raises(dist.DistBackendError) as caught:
            dist.monitored_barrier(timeout=SHORT, wait_all_ranks=all_ranks)
        assert isinstance(caught.value, unisono.WaitTimeout)
        said = WAITING.format(me) if me else f"[Rank 0]: {named} failed to pass monitoredBarrier in 300 ms"
        assert said in str(caught.value)
        told = late if all_ranks else late[:1]
        assert caught.value.missing == told or (me and me not in late and caught.value.missing == (0,))
    if me not in late:
        unisono.barrier()
    dist.barrier()


@pytest.mark.ranks(2, backend="unisono")
def test_detail_checks_calls_before_they_return() -> None:
    group: Any = dist.group.WORLD
    tensor, wrong = torch.ones(3), torch.ones(3 + dist.get_rank())
    with detail():
        with pytest.raises(RuntimeError, match="disagree"):
            group.allreduce([wrong])
        with pytest.raises(RuntimeError, match="disagree"):
            dist.all_reduce(wrong, async_op=True)
        assert group.allreduce([tensor]).is_completed()
    assert tensor.tolist() == [2.0] * 3
    pending = group.allreduce([wrong])
    with pytest.raises(RuntimeError, match="disagree"):
        pending.wait()


@pytest.mark.ranks(3, backend="unisono")
def test_detail_names_a_late_rank() -> None:
    group: Any = dist.new_group(timeout=SHORT)
    said = WAITING.format(2) if dist.get_rank() else "Rank 1 failed to pass monitoredBarrier in 300 ms"
    with detail():
        if dist.get_rank() != 1:
            with pytest.raises(RuntimeError, match=said):
                group.allreduce([torch.ones(3)])
    unisono.barrier()


@pytest.mark.ranks(1, backend="unisono")
def test_errors_can_be_pickled() -> None:
    from unisono.integrations.torch.to_torch import for_torch

    late: Any = for_torch(unisono.WaitTimeout("all_reduce", 1.5, (1,), 0), "some phrase")
    again = pickle.loads(pickle.dumps(late))  # noqa: S301  our own bytes
    assert type(again) is type(late)
    assert str(again) == str(late)
    assert str(late).endswith("some phrase")
    assert again.missing == (1,)
    gone: Any = for_torch(unisono.PeerGone(1, 99, "was killed by signal 9", 0, "all_reduce"))
    assert "Connection closed by peer" in str(gone)
