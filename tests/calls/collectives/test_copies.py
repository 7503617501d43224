"""Calls that work on copies: of tensors that are not plain, with `keep_inputs`, or private where others are shared."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

import unisono
from tests.calls.collectives.test_exact import usual
from tests.fuzz.api import Native
from tests.fuzz.ranks import make_every_call
from tests.support.matrix_driver import begin
from tests.support.on_ranks import in_new_world


@pytest.mark.parametrize("hosts", [None, "3+1"])
@in_new_world(4, hosts="hosts", config=unisono.Config(keep_inputs=1))
def test_kept_inputs_are_what_each_call_finds(hosts: str | None) -> None:
    """Calls in the background, of which each changes the tensor of the next."""
    for turn in range(3):  # what was planned for one call is used by later ones
        start, layouts = torch.arange(1001.0) + turn, (lambda flat: flat, lambda flat: flat.repeat(2, 1).t())
        for lie in layouts:
            tensor = lie(start + unisono.get_rank())
            works: list[Any] = [unisono.all_reduce(tensor, async_op=True) for _ in range(3)]
            works[-1].wait()
            assert torch.equal(tensor, lie(64 * start + 96))
            unisono.all_reduce_coalesced([tensor.copy_(lie(start)), one := torch.ones(3)])
            assert torch.equal(tensor, lie(4 * start))
            assert one.tolist() == [4.0] * 3


class OnMeta(Native):
    """Makes calls in a block in which new tensors have no memory."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)

        def on_meta(*given: Any, **how: Any) -> Any:
            with torch.device("meta"):
                return found(*given, **how)

        return on_meta if callable(found) else found


@pytest.mark.ranks(3)
def test_calls_where_new_tensors_have_no_memory() -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    make_every_call(unisono.init(), (4,), api=OnMeta)
    weights = nn.ParameterDict({"w": nn.Parameter(torch.full((2,), float(me)))})
    weights["w"].grad = torch.full((2,), float(me))
    with torch.device("meta"):
        unisono.broadcast_module(weights, size - 1)
        unisono.average_gradients(weights)
        assert unisono.get_world_size(unisono.split(0)) == size
    assert weights["w"].tolist() == [size - 1.0] * 2
    assert weights["w"].grad.tolist() == [(size - 1) / 2] * 2


MIXED = ["all_reduce", "broadcast", "all_gather_single", "reduce_scatter_single", "all_to_all_single"]


@pytest.mark.sampled
@pytest.mark.parametrize("count", [1500, 6000, 400_000])
@pytest.mark.parametrize(("ranks", "odd", "hosts"), [(2, 1, None), (3, 0, None), (4, 1, "3+1")])
@in_new_world("ranks", hosts="hosts")
def test_calls_where_some_tensors_are_shared(ranks: int, odd: int, hosts: str | None, count: int) -> None:
    """Signature and payload share a line, or do not, or private tensors are read across memory."""
    me = unisono.get_rank()
    hows: list[dict[str, Any]] = [{}, {"async_op": True}, {"algorithm": None, "timeout_s": 30}]
    for how, form, k in product(hows, MIXED, range(24 if count < 10_000 else 4)):
        case = usual(form, count, shared=(me == odd) if k % 4 else k % 8 == 0, root=1, async_op="async_op" in how)
        assert not begin(case, me, ranks, lambda given, form=form, how=how: getattr(unisono, form)(*given, **how))()
