"""What calls refuse of dtypes and layouts, and moves of every dtype. MATRIX=full: all cases, as in `make nightly`."""

import os
from itertools import product

import psutil
import pytest
import torch

import unisono
from tests.fuzz.api import Native
from tests.fuzz.programs import Call, Coalesced, Messages
from tests.fuzz.ranks import Player
from tests.support.matrix import FORMS, MOVED, OPS, PAIR_OF, REDUCING, WRITTEN, Case, every
from tests.support.matrix_driver import IN_PLACE, arguments, check, gives, takes
from tests.support.matrix_layouts import READ_ONLY, VIEWS, Held, exists
from tests.support.on_ranks import in_new_world
from tests.support.reducers_driver import COMPLEX, FLOATS, data, same_bits
from unisono.engine.reducers import DTYPES

SEED = int(os.environ.get("MATRIX_SEED", "20"))

full = pytest.mark.skipif(os.environ.get("MATRIX") != "full", reason="MATRIX=full runs it")


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


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX)
def test_nan_and_zero_differ(dtype: str) -> None:
    nan = torch.tensor([torch.nan]).to(getattr(torch, dtype))
    assert same_bits(nan, nan.clone())
    assert not same_bits(nan, torch.zeros_like(nan))


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
        values = data(dtype, 2, 1001, 0)[unisono.get_rank()]
        tensor = values.clone().view(getattr(torch, dtype))
        go(tensor)
        assert torch.equal(tensor.view(values.dtype), values), dtype


@in_new_world(2, config=unisono.Config(keep_inputs=1))
def test_calls_that_keep_their_inputs() -> None:
    for dtype in MOVED:
        check(Case("broadcast", dtype, "-", 1001, root=1))


@pytest.mark.long
@pytest.mark.timeout(600)
@full
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8])
def test_every_case(ranks: int, form: str) -> None:
    """Sizes, roots and values are drawn from the seed."""

    def play_every() -> list[str]:
        player = Player(api := Native(), api.world)
        for case in every(form, SEED):
            player.play([Call(case)])
        return player.failures

    for failures in unisono.run(play_every, ranks, timeout_s=500):
        assert not failures, f"{len(failures)} are wrong with MATRIX_SEED={SEED}:\n" + "\n".join(failures[:3])


MARKS = (0, 1, 12_345_678, 2**30 + 1, 2**31 - 1, 2**31, 2**31 + 1, 2**31 + 16)


def filled(dtype: torch.dtype, most: int, mark: int) -> torch.Tensor:
    """More than 2^31 elements, `most` everywhere, but for the marks, each with a value of its own."""
    tensor = torch.full((MARKS[-1] + 1,), most, dtype=dtype)
    for k, place in enumerate(MARKS):
        tensor[place] = mark + k
    return tensor


@pytest.mark.long
@pytest.mark.timeout(600)
@full
@pytest.mark.skipif(psutil.virtual_memory().available < 10 << 30, reason="needs 10 GiB of free memory")
@pytest.mark.ranks(2, timeout_s=500)
def test_more_than_two_gibibytes() -> None:
    rank = unisono.get_rank()
    tensor = filled(torch.int8, rank - 100, 10 * rank)
    unisono.broadcast(tensor, 1)
    assert torch.equal(tensor, filled(torch.int8, -99, 10))
    del tensor
    tensor = filled(torch.uint8, 3 + 200 * rank, 20 + 80 * rank)
    unisono.all_reduce(tensor)
    for k, place in enumerate(MARKS):
        assert tensor[place] == 120 + 2 * k
        tensor[place] = 206
    assert all(bool((part == 206).all()) for part in torch.split(tensor, 2**26))
