"""What users do by mistake: one clear error on every rank, and the ranks stay together."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import numpy as np
import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world, in_world


def f(count: int = 4) -> torch.Tensor:
    return torch.zeros(count)


@in_world(2, gives=[[0, 1, 10, 11], [2, 3, 12, 13]])
def test_split_sizes_may_be_arrays() -> list[float]:
    source, out = torch.arange(4.0) + 10 * unisono.get_rank(), f()
    unisono.all_to_all_single(out, source, np.array([2, 2]), torch.tensor([2, 2]))
    return out.tolist()


@pytest.mark.ranks(2)
def test_columns_that_only_interleave_are_apart() -> None:
    matrix = torch.zeros(3, 2)
    unisono.all_gather([matrix[:, 0], matrix[:, 1]], matrix[:, unisono.get_rank()] + unisono.get_rank() + 1)
    assert matrix.tolist() == [[1, 2]] * 3


@pytest.mark.ranks(2)
def test_a_scale_is_looked_at_in_every_call() -> None:
    def quantized(scale: float) -> torch.Tensor:
        return torch.quantize_per_tensor(torch.ones(4), scale, 0, torch.quint8)

    for _ in range(3):
        unisono.broadcast(quantized(0.5), 0)
    with pytest.raises(unisono.MismatchError):
        unisono.broadcast(quantized((0.5, 0.25)[unisono.get_rank()]), 0)
    with pytest.raises(unisono.DTypeError, match="int_repr"):
        unisono.send(quantized(0.5), 0)
    with pytest.raises(unisono.DTypeError, match="int_repr"):
        unisono.broadcast_coalesced([quantized(0.5)], 0)
    with pytest.raises(unisono.DTypeError, match="quint8"):
        unisono.empty(3, dtype=torch.quint8)
    with pytest.raises(unisono.DTypeError, match=r"dtype: expected a torch.dtype, got str"):
        unisono.empty(3, dtype="float32")
    unisono.barrier()


@pytest.mark.ranks(3)
def test_lists_may_change_while_an_asynchronous_call_runs() -> None:
    me, p, n = unisono.get_rank(), unisono.get_world_size(), 1_000_000
    blocks = [f(n) for _ in range(p)]
    kept = list(blocks)
    work = unisono.all_gather(blocks, torch.full((n,), float(me)), async_op=True)
    blocks[0] = torch.empty(0)
    work.wait()
    assert [tensor[n - 1].item() for tensor in kept] == list(range(p))
    lost = [f(n) for _ in range(p)]
    work = unisono.all_gather(lost, torch.full((n,), 1.0), async_op=True)
    lost.clear()
    work.wait()
    many = [torch.ones(n) for _ in range(3)]
    pending = unisono.all_reduce_coalesced(many, async_op=True)
    many.clear()
    pending.wait()
    tensor = torch.ones(n)
    pending = unisono.all_reduce(tensor, async_op=True)
    tensor.data = torch.empty(0)
    pending.wait()


@pytest.mark.ranks(2)
def test_times_may_be_timedeltas() -> None:
    for _ in range(3):  # also on the fast path
        unisono.all_reduce(f(), timeout_s=timedelta(seconds=20))
        unisono.all_gather_single(f(8), f(), timeout_s=timedelta(seconds=20))
    if unisono.get_rank() == 0:
        pending = unisono.all_reduce(f(), async_op=True)
        with pytest.raises(unisono.WaitTimeout):
            pending.wait(timedelta(milliseconds=10))
        unisono.send(f(), 1)
        pending.wait()
    else:
        unisono.recv(f(), 0)
        unisono.all_reduce(f())


@pytest.mark.ranks(2)
def test_a_group_that_is_none_is_named() -> None:
    for call in (
        lambda group: unisono.all_reduce(f(), group=group),
        lambda group: unisono.new_group(group=group),
        unisono.get_rank,
        unisono.get_process_group_ranks,
        unisono.grow,
        unisono.destroy_group,
    ):
        with pytest.raises(unisono.DTypeError, match=r"group: expected a Group.*, got str"):
            call("world")


@in_new_world(2)
def test_who_left_its_run_is_not_silently_alone() -> None:
    unisono.shutdown()
    with pytest.raises(unisono.NotInitialized, match=r"left the group of its run"):
        unisono.all_reduce(f())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@in_new_world(2, gives=["parent", "parent"])
def test_a_forked_child_does_not_answer_for_its_rank() -> str:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        if unisono.get_rank():
            sys.exit(0)
        return "child"
    os.waitpid(child, 0)
    time.sleep(0)
    return "parent"
