"""What most programs do, once each: on one host, and over two of one rank. Two worlds, which all tests share."""

from functools import partial

import pytest
import torch

import unisono
from tests.fuzz.api import Native
from tests.fuzz.programs import Barrier, Coalesced, MakeGroup, Messages, Objects, Split
from tests.fuzz.ranks import Player
from tests.support.matrix import FORMS, Case, ops
from tests.support.matrix_driver import check
from tests.support.on_ranks import in_world
from tests.support.reducers_driver import NUMERIC

pytestmark = [pytest.mark.quick, pytest.mark.parametrize("shape", [2, "2x1"], ids=["one host", "two hosts"])]


@pytest.mark.parametrize("form", FORMS)
@in_world("shape")
def test_a_collective(shape: int | str, form: str) -> None:
    for shared in (False, True):
        for n in (1, 1000, 100_003):
            check(Case(form, "float32", ops(form, "float32")[0], n, shared=shared, root=1, async_op=shared))


@in_world("shape")
def test_every_dtype_and_op(shape: int | str) -> None:
    for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"):
        for op in NUMERIC:
            check(Case("all_reduce", dtype, op, 33))


@in_world("shape")
def test_rank_keeps_an_output_that_is_copied(shape: int | str) -> None:
    """Rank 0 of exscan keeps its tensor. Those of a premultiplied sum are made in another one."""
    for op in ("sum", "premul_sum"):
        check(Case("exscan", "float32", op, 10, "strided"))


@in_world("shape", all_give=[])
def test_messages_objects_models_and_groups(shape: int | str) -> list[str]:
    player = Player(api := Native(), api.world)
    parts = (("float32", 6), ("float32", 2), ("float64", 3))
    messages = [Messages(way, "float32", n, tag) for tag, way in enumerate(("ring", "pair")) for n in (3, 100_003)]
    models = Objects("all_gather_object"), Coalesced("broadcast_module", parts, root=1)
    groups = Split("alone", (0, 1), (0, 0)), MakeGroup("both", (1, 0))
    both = (Coalesced("all_reduce_coalesced", parts, group=name) for name in ("alone", "both"))
    player.play((*messages, *models, *groups, *both, Barrier()))
    return player.failures


@in_world("shape")
def test_a_mismatch_names_both_calls(shape: int | str) -> None:
    mine = unisono.all_reduce if unisono.get_rank() else partial(unisono.broadcast, src=0)
    with pytest.raises(unisono.MismatchError, match=r"(?s)rank 1  all_reduce.*rank 0  broadcast"):
        mine(torch.ones(3))
    unisono.barrier()
