"""What most programs do, once each: on one host, and over two of one rank. Two worlds, which all tests share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

import unisono
from tests.support.matrix import FORMS, Case, ops
from tests.support.matrix_driver import check
from tests.support.reducers_driver import NUMERIC
from unisono.calls.p2p import irecv, isend, recv, send

PLACES = ("one host", "two hosts")


@pytest.fixture
def world(
    request: pytest.FixtureRequest, worlds: Callable[[int], unisono.World], on_hosts: Callable[[str], unisono.World]
) -> unisono.World:
    """Two ranks."""
    return worlds(2) if request.param == "one host" else on_hosts("2x1")


pytestmark = [pytest.mark.quick, pytest.mark.parametrize("world", PLACES, indirect=True)]


@pytest.mark.parametrize("form", FORMS)
def test_a_collective(world: unisono.World, form: str) -> None:
    def work() -> None:
        for shared in (False, True):
            for n in (1, 1000, 100_003):
                check(Case(form, "float32", ops(form, "float32")[0], n, shared=shared, root=1, async_op=shared))

    world.run(work)


def test_every_dtype_and_op(world: unisono.World) -> None:
    def work() -> None:
        for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"):
            for op in NUMERIC:
                check(Case("all_reduce", dtype, op, 33))

    world.run(work)


def test_a_rank_keeps_its_output_where_that_is_copied(world: unisono.World) -> None:
    """Rank 0 of exscan keeps its tensor. Those of a premultiplied sum are made in another one."""

    def work() -> None:
        for op in ("sum", "premul_sum"):
            check(Case("exscan", "float32", op, 10, "strided"))

    world.run(work)


def test_messages(world: unisono.World) -> None:
    def work() -> None:
        me, peer = unisono.get_rank(), 1 - unisono.get_rank()
        for count in (3, 100_003):
            mine, theirs = torch.full((count,), me + 1.0), torch.empty(count)
            works = [isend(mine, peer), irecv(theirs, peer)]
            for work in works:
                work.wait()
            assert bool((theirs == peer + 1).all())
            if me:
                recv(theirs, peer, tag=7)
                assert bool((theirs == 5).all())
            else:
                send(theirs.fill_(5), peer, tag=7)

    world.run(work)


def test_objects_models_and_groups(world: unisono.World) -> None:
    def work() -> None:
        me = unisono.get_rank()
        objects = [None, None]
        unisono.all_gather_object(objects, {"rank": me})
        assert objects == [{"rank": 0}, {"rank": 1}]
        model = torch.nn.Linear(3, 2)
        unisono.broadcast_module(model)
        weights = [torch.empty_like(model.weight.data) for _ in range(2)]
        unisono.all_gather(weights, model.weight.data)
        assert torch.equal(*weights)
        alone = unisono.split(color=me)
        assert alone is not None
        assert alone.size == 1
        both = unisono.new_group([1, 0])
        assert isinstance(both, unisono.Group)
        tensors = [torch.full((2,), me + k) for k in range(5)]
        unisono.all_reduce_coalesced(tensors, group=both)
        assert [tensor.tolist() for tensor in tensors] == [[1 + 2 * k] * 2 for k in range(5)]
        unisono.barrier()

    world.run(work)


def test_a_mismatch_names_both_calls(world: unisono.World) -> None:
    def work() -> str:
        mine = unisono.all_reduce if unisono.get_rank() else partial(unisono.broadcast, src=0)
        with pytest.raises(unisono.MismatchError) as caught:
            mine(torch.ones(3))
        unisono.barrier()
        return str(caught.value)

    for text in world.run(work):
        assert "all_reduce" in text
        assert "broadcast" in text
