"""What most programs do, once each: on one host, and over two of one rank. Two worlds, which all tests share."""

from functools import partial

import pytest
import torch

import unisono
from tests.fuzz.api import Native
from tests.fuzz.programs import Coalesced, MakeGroup, Split
from tests.fuzz.ranks import Player, make_every_call
from tests.support.matrix import Case
from tests.support.matrix_driver import check
from tests.support.reducers_driver import NUMERIC

pytestmark = [pytest.mark.quick, pytest.mark.ranks(2, hosts="2x1")]


def test_every_dtype_and_op() -> None:
    """Rank 0 of exscan keeps its tensor, and those of a premultiplied sum are made in another one."""
    for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"):
        for op in NUMERIC:
            check(Case("all_reduce", dtype, op, 33))
    for op in ("sum", "premul_sum"):
        check(Case("exscan", "float32", op, 10, "strided"))


def test_every_call_also_in_groups() -> None:
    make_every_call(unisono.init(), (1, 1000, 100_003))
    player = Player(api := Native(), api.world)
    parts = (("float32", 6), ("float32", 2), ("float64", 3))
    both = (Coalesced("all_reduce_coalesced", parts, group=name) for name in ("alone", "both"))
    groups = Split("alone", (0, 1), (0, 0)), MakeGroup("both", (1, 0))
    player.play((Coalesced("broadcast_module", parts, root=1), *groups, *both))
    assert player.failures == []


def test_a_mismatch_names_both_calls() -> None:
    mine = unisono.all_reduce if unisono.get_rank() else partial(unisono.broadcast, src=0)
    with pytest.raises(unisono.MismatchError, match=r"(?s)rank 1  all_reduce.*rank 0  broadcast"):
        mine(torch.ones(3))
    unisono.barrier()
