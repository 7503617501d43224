"""`coalescing`: calls that are collected, and made when their block ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import unisono
from unisono import DTypeError, MismatchError, all_reduce
from unisono.calls.coalesced import coalescing

Worlds = Callable[[int], unisono.World]


def mine(count: int, seed: int = 0) -> torch.Tensor:
    return torch.arange(float(count)) + 100 * unisono.get_rank() + 10_000 * seed


def calls_made() -> int:
    return unisono.init().host.call_number


def test_calls_are_made_at_the_end_and_few(worlds: Worlds) -> None:
    def work() -> None:
        tensors, expected = ([mine(n, n) for n in range(1, 30)] for _ in range(2))
        for tensor in expected:
            unisono.all_reduce(tensor, "max")
        before = calls_made()
        with coalescing() as calls:
            for tensor in tensors:
                calls.all_reduce(tensor, "max")
            assert calls_made() == before
            assert torch.equal(tensors[3], mine(4, 4))
        assert calls_made() == before + 1
        assert all(map(torch.equal, tensors, expected))

    worlds(3).run(work)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_kinds_in_their_order(worlds: Worlds, ranks: int, async_op: bool) -> None:
    """Each call sees what those before it have made, as if they had been made one by one."""

    def work() -> None:
        a, b, c = mine(4 * ranks), mine(4), mine(5, 2)
        with coalescing(async_op=async_op) as calls:
            calls.all_reduce(b)
            calls.all_reduce(c)
            calls.all_gather_single(a, b)
            calls.reduce_scatter_single(b, a, "avg")
            calls.all_reduce(c)
            calls.all_reduce(c)
            calls.broadcast(a, ranks - 1)
            calls.broadcast(b, 0)
        calls.wait()
        x, y, z = mine(4 * ranks), mine(4), mine(5, 2)
        unisono.all_reduce(y)
        for _ in range(3):
            unisono.all_reduce(z)
        unisono.all_gather_single(x, y)
        unisono.reduce_scatter_single(y, x, "avg")
        unisono.broadcast(x, ranks - 1)
        unisono.broadcast(y, 0)
        assert torch.equal(a, x)
        assert torch.equal(b, y)
        assert torch.equal(c, z)

    worlds(ranks).run(work)


def test_calls_of_one_kind_that_follow_from_each_other(worlds: Worlds) -> None:
    def work() -> None:
        a, b, c = mine(3), mine(6, 1), mine(12, 2)
        x, y, z = mine(3), mine(6, 1), mine(12, 2)
        with coalescing() as calls:
            calls.all_gather_single(b, a)
            calls.all_gather_single(c, b)  # reads what is written
            calls.reduce_scatter_single(b, c)
            calls.reduce_scatter_single(a, b)
            calls.reduce_scatter_single(b, c)  # writes what is read
        unisono.all_gather_single(y, x)
        unisono.all_gather_single(z, y)
        unisono.reduce_scatter_single(y, z)
        unisono.reduce_scatter_single(x, y)
        unisono.reduce_scatter_single(y, z)
        assert torch.equal(a, x)
        assert torch.equal(b, y)
        assert torch.equal(c, z)

    worlds(2).run(work)


def test_an_exception_leaves_everything_as_it_was(worlds: Worlds) -> None:
    def work() -> None:
        tensor = mine(5)

        def fail() -> None:
            with coalescing() as calls:
                calls.all_reduce(tensor)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert torch.equal(tensor, mine(5))
        with pytest.raises(DTypeError, match="output"), coalescing() as calls:
            calls.all_reduce(5)  # type: ignore[arg-type]
        # To ranks that do make their calls, these were others.
        with pytest.raises(ZeroDivisionError if unisono.get_rank() else MismatchError):
            fail() if unisono.get_rank() else all_reduce(tensor)
        assert torch.equal(tensor, mine(5))
        all_reduce(tensor)

    worlds(2).run(work)
