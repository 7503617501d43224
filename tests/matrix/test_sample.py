"""A random sample of the matrix against the oracle, and all that the calls refuse. `make matrix` runs all of it."""

from __future__ import annotations

import os
from itertools import product

import pytest
import torch

import unisono
from tests.support.matrix import FORMS, MOVED, OPS, PAIR_OF, REDUCING, WRITTEN, Case, every, sample
from tests.support.matrix_driver import IN_PLACE, arguments, gives, run_cases, takes
from tests.support.matrix_layouts import READ_ONLY, Held, exists
from tests.support.on_ranks import in_world
from tests.support.worlds import Worlds
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


def test_the_sample_is_of_the_matrix() -> None:
    """What is drawn is what `make matrix` goes through, and reaches every value of every axis."""
    drawn = list(sample(SEED, 5_000))
    for axis in ("form", "dtype", "op", "layout", "blocks", "shared", "async_op"):
        whole = {getattr(case, axis) for form in FORMS for case in every(form, 0)}
        assert {getattr(case, axis) for case in drawn} == whole, axis


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


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("form", REDUCING)
@in_world("ranks", all_give=26 * 10 - len(PAIR_OF))
def test_pairs_that_do_not_exist_are_refused_on_every_rank(ranks: int, form: str) -> int:
    pairs = [pair for pair in product((*DTYPES, *MOVED), OPS) if pair not in PAIR_OF and pair[1] != "tensors"]
    for dtype, op in pairs:
        refused(form, dtype, op)
        still_works()
    return len(pairs)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@in_world("ranks", all_give=8 * 4)
def test_views_that_cannot_be_written_are_refused_as_outputs(ranks: int) -> int:
    calls = 0
    for form in (*WRITTEN, "all_gather", "all_gather_single", "reduce_scatter", "all_to_all", "all_to_all_single"):
        for layout, dtype in product(READ_ONLY, ("float32", "complex64")):
            if exists(layout, dtype):
                refused(form, dtype, "sum", layout)
                still_works()
                calls += 1
    return calls
