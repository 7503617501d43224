"""A random sample of the matrix against the oracle, all that calls refuse, and moves of every dtype."""

import os
from itertools import product

import pytest
import torch

import unisono
from tests.support.matrix import MOVED, OPS, PAIR_OF, REDUCING, WRITTEN, Case, sample
from tests.support.matrix_driver import IN_PLACE, arguments, gives, run_cases, takes
from tests.support.matrix_layouts import READ_ONLY, VIEWS, Held, exists
from tests.support.on_ranks import in_new_world
from tests.support.worlds import Worlds
from unisono.calls import p2p
from unisono.engine.reducers import DTYPES

SEED = int(os.environ.get("MATRIX_SEED", "20"))
CASES = 1500
RANKS = (1, 2, 3, 4)


def run_sample(seed: int, count: int) -> tuple[int, int, list[str]]:
    return run_cases(sample(seed, count))


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("ranks", RANKS)
def test_a_sample_of_the_matrix(worlds: Worlds, ranks: int) -> None:
    count = CASES // len(RANKS)
    results = worlds(ranks).run(run_sample, SEED * 10 + ranks, count)
    failures = [text for _, _, found in results for text in found]
    assert not failures, f"{ranks} ranks, MATRIX_SEED={SEED}:\n" + "\n".join(failures)
    assert [(made, bad) for made, bad, _ in results] == [(count, 0)] * ranks


def passed(form: str, dtype: str, op: str, layout: str = "contiguous") -> tuple[list[Held], list[object]]:
    """Tensors and arguments of a call that is to be refused."""
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
    held._bytes[-1] += 1
    assert held.check(None) == "what is only read has changed"


COUNT = 1001


def held(dtype: str, seed: int, layout: str = "contiguous", shared: bool = False) -> tuple[Held, torch.Tensor]:
    """A tensor with values of its own for every seed, and these."""
    kind = getattr(torch, dtype)
    numbers = (torch.arange(COUNT * kind.itemsize) * 7 + seed * 13) % 251
    values = numbers.to(torch.uint8).view(kind)
    return Held(layout, COUNT, kind, shared, values), values


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.ranks(2, hosts=["2x1", "2x2"])
def test_dtypes_that_are_only_moved(dtype: str) -> None:
    """By messages to oneself, to the heap, in a call of many tensors, and to all ranks."""
    me = unisono.get_rank()
    (given, values), (taken, _) = held(dtype, me), held(dtype, 9, "strided")
    p2p.send(given.tensor, me)
    p2p.recv(taken.tensor, me)
    found = given.check(values) or taken.check(values)
    pairs = [held(dtype, me), held(dtype, 5 + me)]
    unisono.share_(pairs[0][0].tensor)
    unisono.flatten_([pairs[1][0].tensor])
    for one, wished in pairs:
        if one.tensor.view(torch.uint8).tolist() != wished.view(torch.uint8).tolist():
            found += "changed on the way to the heap"
    pairs = [held(dtype, me), held(dtype, 5 + me, "strided")]
    unisono.broadcast_coalesced([one.tensor for one, _ in pairs], 1)
    found += "".join(one.check(held(dtype, seed)[1]) for (one, _), seed in zip(pairs, (1, 6), strict=True))
    outputs = [held(dtype, 9)[0] for _ in range(unisono.get_world_size())]
    unisono.all_gather([out.tensor for out in outputs], given.tensor)
    found += given.check(values) + "".join(out.check(held(dtype, k)[1]) for k, out in enumerate(outputs))
    assert found == ""


@in_new_world(2, config=unisono.Config(keep_inputs=1))
def test_calls_that_keep_their_inputs() -> None:
    for dtype in MOVED:
        one, _ = held(dtype, unisono.get_rank())
        unisono.broadcast(one.tensor, 1)
        assert one.check(held(dtype, 1)[1]) == "", dtype
