"""What users do by mistake: one clear error on every rank, and the ranks stay together."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch

import unisono
from tests.support.worlds import Worlds


def f(count: int = 4) -> torch.Tensor:
    return torch.zeros(count)


def freed() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


WRONG: dict[str, Callable[[], Any]] = {
    "a stacked tensor for a scatter list": lambda: unisono.scatter(f(), torch.zeros(2, 4), 0),  # type: ignore[arg-type]
    "a stacked tensor for a gather list": lambda: unisono.gather(f(), torch.zeros(2, 4), 0),  # type: ignore[arg-type]
    "split sizes with None": lambda: unisono.all_to_all_single(f(), f(), [None, 4], [2, 2]),  # type: ignore[list-item]
    "broken split sizes": lambda: unisono.all_to_all_single(f(), f(), [1.5, 2.5], [2, 2]),  # type: ignore[list-item]
    "a root of objects": lambda: unisono.gather_object(1, [None, None], dst=5),
    "no module": lambda: unisono.broadcast_module("model"),  # type: ignore[arg-type]
    "no module to average": lambda: unisono.average_gradients(3),  # type: ignore[arg-type]
    "a list for an algorithm": lambda: unisono.all_reduce(f(), algorithm=["x"]),
    "a text for a time": lambda: unisono.broadcast(f(), 0, timeout_s="3", algorithm="linear"),  # type: ignore[arg-type]
    "NaN for a time": lambda: unisono.reduce(f(), 0, timeout_s=float("nan"), algorithm="linear"),
    "a freed tensor": lambda: unisono.all_reduce(freed()),
    "a freed tensor in a list": lambda: unisono.all_reduce_coalesced([f(), freed()]),
    "zeros that are nowhere": lambda: unisono.broadcast(torch._efficientzerotensor(4), 0),
    "one block twice, strided": lambda: unisono.all_gather([torch.zeros(4, 2)[:, 0]] * 2, f()),
    "elements that overlap": lambda: unisono.all_reduce(torch.zeros(9).as_strided((3, 2), (1, 1))),
    "a block that raises": lambda: raise_in_block(),
}


def raise_in_block() -> None:
    with unisono.coalescing() as calls:
        calls.all_reduce(f())
        calls.all_reduce("no tensor")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WRONG)
def test_who_is_wrong_raises_and_the_others_hear_of_it(worlds: Worlds, name: str) -> None:
    def work() -> tuple[str, float]:
        try:
            if unisono.get_rank() == 0:
                WRONG[name]()
            else:
                unisono.barrier(timeout_s=30)
        except Exception as error:  # noqa: BLE001  that there is one is the point
            said = type(error).__name__
        else:
            said = "nothing"
        tensor = torch.tensor([unisono.get_rank() + 1.0])
        unisono.all_reduce(tensor)
        return said, tensor.item()

    (wrong, total), (other, same) = worlds(2).run(work)
    assert wrong in ("ArgumentError", "DTypeError", "TypeError"), wrong
    assert other == "MismatchError"
    assert total == same == 3.0


def test_split_sizes_may_be_arrays(worlds: Worlds) -> None:
    def work() -> list[float]:
        source, out = torch.arange(4.0) + 10 * unisono.get_rank(), f()
        unisono.all_to_all_single(out, source, np.array([2, 2]), torch.tensor([2, 2]))  # type: ignore[arg-type]
        return out.tolist()

    assert worlds(2).run(work) == [[0, 1, 10, 11], [2, 3, 12, 13]]


def test_columns_that_only_interleave_are_apart(worlds: Worlds) -> None:
    def work() -> list[list[float]]:
        matrix = torch.zeros(3, 2)
        unisono.all_gather([matrix[:, 0], matrix[:, 1]], matrix[:, unisono.get_rank()] + unisono.get_rank() + 1)
        return matrix.tolist()

    assert worlds(2).run(work) == [[[1, 2]] * 3] * 2


def test_a_scale_is_looked_at_in_every_call(worlds: Worlds) -> None:
    def work() -> None:
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
        unisono.barrier()

    worlds(2).run(work)


def test_lists_may_change_while_an_asynchronous_call_runs(worlds: Worlds) -> None:
    def work() -> None:
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
        assert pending is not None
        pending.wait()
        tensor = torch.ones(n)
        pending = unisono.all_reduce(tensor, async_op=True)
        tensor.data = torch.empty(0)
        assert pending is not None
        pending.wait()

    worlds(3).run(work)


def test_times_may_be_timedeltas(worlds: Worlds) -> None:
    def work() -> None:
        for _ in range(3):  # also on the fast path
            unisono.all_reduce(f(), timeout_s=timedelta(seconds=20))  # type: ignore[arg-type]
            unisono.all_gather_single(f(8), f(), timeout_s=timedelta(seconds=20))
        if unisono.get_rank() == 0:
            pending = unisono.all_reduce(f(), async_op=True)
            assert pending is not None
            with pytest.raises(unisono.WaitTimeout):
                pending.wait(timedelta(milliseconds=10))  # type: ignore[arg-type]
            unisono.send(f(), 1)
            pending.wait()
        else:
            unisono.recv(f(), 0)
            unisono.all_reduce(f())

    worlds(2).run(work)


def test_autograd_sees_that_a_call_has_changed_a_tensor(worlds: Worlds) -> None:
    def work() -> None:
        for count in (3, 3):  # the second finds the plan of the first
            y = torch.ones(count, requires_grad=True).exp()
            unisono.all_reduce(y)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()

    worlds(2).run(work)


def test_who_left_its_run_is_not_silently_alone() -> None:
    def work() -> None:
        unisono.shutdown()
        with pytest.raises(unisono.NotInitialized, match=r"left the group of its run"):
            unisono.all_reduce(f())

    unisono.run(work, ranks=2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_does_not_answer_for_its_rank() -> None:
    def work() -> str:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            if unisono.get_rank():
                sys.exit(0)
            return "child"
        os.waitpid(child, 0)
        time.sleep(0)
        return "parent"

    assert unisono.run(work, ranks=2) == ["parent", "parent"]


def test_send_says_what_is_wrong_with_a_tensor(worlds: Worlds) -> None:
    def work() -> None:
        with pytest.raises(unisono.DTypeError, match=r"tensor: expected a torch.Tensor, got str"):
            unisono.send("x", 0)

    worlds(1).run(work)
