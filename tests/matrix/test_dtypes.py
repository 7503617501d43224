"""What calls refuse of dtypes and layouts, and moves of every dtype."""

from itertools import product

import pytest
import torch

import unisono
from tests.fuzz.api import Native
from tests.fuzz.programs import Call, Coalesced, Messages
from tests.fuzz.ranks import Player
from tests.support.matrix import MOVED, OPS, PAIR_OF, REDUCING, WRITTEN, Case
from tests.support.matrix_driver import IN_PLACE, arguments, check, drawn, gives, takes
from tests.support.matrix_layouts import READ_ONLY, VIEWS, Held, exists
from tests.support.on_ranks import in_new_world
from unisono.engine.reducers import DTYPES


def passed(form: str, dtype: str, op: str, layout: str = "contiguous") -> tuple[list[Held], list[object]]:
    me, p, kind = unisono.get_rank(), unisono.get_world_size(), getattr(torch, dtype)
    case = Case(form, dtype, op, 6, layout, "even", False, False, 0, 0)
    given = [Held(layout if form in IN_PLACE else "contiguous", n, kind, False, None) for n in gives(case, p, me)]
    taken = [] if form in IN_PLACE else [Held(layout, n, kind, False, None) for n in takes(case, p, me)]
    return [*given, *taken], arguments(case, me, p, [held.tensor for held in given], [held.tensor for held in taken])


def refused(form: str, dtype: str, op: str, layout: str = "contiguous") -> None:
    """The call raises on this rank, and leaves its tensors as they were."""
    held, given = passed(form, dtype, op, layout)
    error = unisono.DTypeError if layout == "contiguous" else unisono.ArgumentError
    with pytest.raises(error) as caught:
        getattr(unisono, form)(*given)
    assert dtype in str(caught.value) or layout != "contiguous"
    assert [one.check(None) for one in held] == [""] * len(held)


def still_works() -> None:
    tensor = torch.full((3,), unisono.get_rank() + 1.0)
    unisono.all_reduce(tensor)
    assert tensor.tolist() == [sum(range(1, unisono.get_world_size() + 1))] * 3


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("form", REDUCING)
def test_every_rank_refuses_impossible_pairs(form: str) -> None:
    pairs = [pair for pair in product((*DTYPES, *MOVED), OPS) if pair not in PAIR_OF]
    assert len(pairs) == 26 * 10 - len(PAIR_OF)
    for dtype, op in pairs:
        refused(form, dtype, op)
        still_works()


@pytest.mark.ranks(1, 2, 3)
def test_unwritable_views_are_refused_as_outputs() -> None:
    calls = 0
    for form in (*WRITTEN, "all_gather", "all_gather_single", "reduce_scatter", "all_to_all", "all_to_all_single"):
        for layout, dtype in product(READ_ONLY, ("float32", "complex64")):
            if exists(layout, dtype):
                refused(form, dtype, "sum", layout)
                still_works()
                calls += 1
    assert calls == 8 * 4


@pytest.mark.parametrize("layout", sorted(VIEWS.keys() - {"empty", "scalar"}))
def test_changed_value_or_input_is_noticed(layout: str) -> None:
    kind = torch.complex64 if layout == "conjugate" else torch.float32
    values = torch.tensor([1.0, 2.0, 3.0] * 2).to(kind)
    held = Held(layout, 6, kind, False, values)
    assert held.check(None) == ""
    if layout not in ("conjugate", "negative"):  # these are never written
        assert held.check(values) == ""
        assert "1 of 6 elements differ" in held.check(torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0, 4.0]))
    memory = held.tensor.untyped_storage()
    memory[memory.nbytes() - 1] = 7
    assert held.check(None) == "what is only read has changed"


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.ranks(2, hosts=["2x1", "2x2"])
def test_dtypes_that_are_only_moved(dtype: str) -> None:
    player = Player(api := Native(), api.world)
    parts = (dtype, 1001), (dtype, 5)
    player.play([Coalesced("broadcast_coalesced", parts, strided=strided, root=1) for strided in (False, True)])
    player.play([Messages("ring", dtype, 1001, 0, shift=0, layout=layout) for layout in ("contiguous", "strided")])
    player.play([Call(Case("all_gather", dtype, "-", 1001))])
    assert player.failures == []


@pytest.mark.ranks(2)
def test_moved_dtypes_go_to_the_heap() -> None:
    for dtype, go in product(MOVED, (unisono.share_, lambda one: unisono.flatten_([one]))):
        values = drawn(dtype, 2, 1001, 0)[unisono.get_rank()]
        tensor = values.clone().view(getattr(torch, dtype))
        go(tensor)
        assert torch.equal(tensor.view(values.dtype), values), dtype


@in_new_world(2, config=unisono.Config(keep_inputs=1))
def test_calls_that_keep_their_inputs() -> None:
    for dtype in MOVED:
        check(Case("broadcast", dtype, "-", 1001, root=1))
