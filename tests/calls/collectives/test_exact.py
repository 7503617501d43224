"""Every collective, algorithm, form, size, dtype and op on real processes: the right bits, the same on all ranks."""

import random
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from tests.calls.over_hosts.test_algorithms import OWN
from tests.conftest import examples
from tests.schedule.exchange.files import FILES
from tests.support.matrix import ALIASED, FORMS, Case, ops
from tests.support.matrix_driver import algorithms, check, roots
from tests.support.on_ranks import in_new_world
from unisono.base.config import Config
from unisono.schedule import send

WHOLE = [form for form in FORMS if f"{form}_single" not in FORMS]
"""The calls, without the forms for lists of those that have another one."""

UNEVEN = [form for form, kinds in FORMS.items() if "uneven" in kinds]
BOTH = (False, True)


def usual(form: str, n: int, op: int = 0, **more: Any) -> Case:
    """A call with float32, and sums or the op of this number. Any algorithm gives the same results."""
    known = ops(form, "float32")[:4]
    return Case(form, "float32", known[op % len(known)], n, exact=True, **more)


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.ranks(1, 2, 3, 4, 5, 7)
def test_every_algorithm_and_form(form: str) -> None:
    """Of reductions, with each op in its turn."""
    calls = 0
    for root, name, n in product(roots(form), [None, *algorithms(form)], (0, 1, 7, 64, 1000)):
        for shared, alias in product(BOTH, BOTH if form in ALIASED else [False]):
            check(usual(form, n, calls, shared=shared, root=root, seed=calls % 3, alias=alias), name)
            calls += 1
    assert calls >= 8


@in_new_world(3, config=Config(segment_bytes=16 << 10))
def test_every_algorithm_in_many_small_segments() -> None:
    for form in WHOLE:
        for name, (n, seed) in product([None, *algorithms(form)], ((30_011, 1), (9_001, 2), (30_011, 3))):
            check(usual(form, n, root=1, seed=seed, shared=seed == 2), name)
    for form, seed in product(UNEVEN, (1, 2)):
        for name, n in product([None, *algorithms(form)], (9, 30_011)):
            check(usual(form, n, blocks="uneven", seed=seed, root=seed), name)


@pytest.mark.ranks(3)
def test_repeated_calls_take_new_tensors() -> None:
    """The plan of a call is kept for the next one; the tensors' addresses, contents and layouts must not be."""
    for form, seed, layout in product(WHOLE, range(6), ("contiguous", "offset", "strided")):
        check(usual(form, 3000, seed=seed, layout=layout, shared=seed % 3 == 0, root=seed % 3))


@pytest.mark.ranks(3)
def test_own_algorithm_runs() -> None:
    def one_after_the_other(r, p, root):
        for k in range(1, p):
            yield send(root, (root + k) % p, 0, n=p)

    for n, shared, seed in product((0, 7, 5003), BOTH, (1, 2)):
        check(usual("broadcast", n, shared=shared, seed=seed), one_after_the_other)
        for form, alias in (("all_reduce", False), ("all_gather_single", True), ("reduce_scatter_single", True)):
            for function in OWN[form.removesuffix("_single")]:
                check(usual(form, n, shared=shared, seed=seed, alias=alias), function)


@pytest.mark.ranks(4)
def test_barrier_waits_for_the_last_rank() -> None:
    group = unisono.init()
    arrived = group.empty(1, dtype=torch.int64).zero_()
    everybody = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size)]
    for k, name in enumerate([None, *algorithms("barrier")] * 5, start=1):
        arrived.fill_(k)
        for _ in range(group.rank * 1000):  # the higher the rank, the later it comes
            pass
        unisono.barrier(algorithm=name)
        unisono.all_gather(everybody, arrived)
        assert all(int(one) == k for one in everybody)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.ranks(2, 3, 5)
def test_bits_depend_on_the_numbers_only(dtype: str) -> None:
    """Numbers of very different sizes are added in rank order, wherever they lie, on both sides of every limit."""
    counts, names = (1, 3, 64, 100, 1000, 2047, 2049, 4097, 9_001, 16_385, 33_001), (None, "one_shot", "two_shot")
    for op, n, layout, shared, name in product(("sum", "avg"), counts, ("contiguous", "offset"), BOTH, names):
        check(Case("all_reduce", dtype, op, n, layout, shared=shared, seed=n), name)


@pytest.mark.ranks(3)
def test_even_and_uneven_calls_alternate() -> None:
    """In gather only the root knows that sizes differ."""
    me = unisono.get_rank()
    for turn in range(40):
        gathered = unisono.all_gather(None, torch.full((4 if turn % 3 else 2 + me,), me + turn))
        assert [one.unique().tolist() for one in gathered] == [[rank + turn] for rank in range(3)]
        check(usual("all_gather", 4, blocks="unknown", seed=turn))
        check(usual("gather", 4, blocks="even" if turn % 3 else "uneven", root=1, seed=turn))
        check(usual("all_gather_single", 4, seed=turn))


@pytest.mark.parametrize("form", ["all_gather", "reduce_scatter"])
@pytest.mark.ranks(2, 3)
def test_whole_tensor_on_one_rank_meets_lists(form: str) -> None:
    for n, shared, layout in product((3, 6000), BOTH * 2, ("contiguous", "strided")):
        check(usual(form if unisono.get_rank() else f"{form}_single", n, layout=layout, shared=shared))


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.ranks(3)
def test_all_gather_of_unknown_shapes(later: bool) -> None:
    me = unisono.get_rank()
    mine = torch.full((2, me), me, dtype=torch.int16).t()
    made = unisono.all_gather(None, mine, async_op=later)
    gathered = made.result() if later else made
    assert [tensor.tolist() for tensor in gathered] == [[], [[1, 1]], [[2, 2], [2, 2]]]
    assert {tensor.dtype for tensor in gathered} == {torch.int16}
    assert [tensor.dim() for tensor in unisono.all_gather(None, torch.zeros([1] * 8))] == [8] * 3


@in_new_world(3, config=Config(look_up_s=1e-6, spins=0))
def test_late_peers_cause_no_false_mismatch() -> None:
    """A rank that looks up at the gate may see a peer in the next call already."""
    late = random.Random(unisono.get_rank())
    for seed in range(examples(600)):
        check(Case("all_reduce", "float32", "sum", 1, seed=seed % 31))
        if late.random() < 0.5:
            time.sleep(late.random() * 1e-3)


@pytest.mark.ranks(4, hosts="2x2")
def test_file_of_an_algorithm_takes_any_size(tmp_path: Path) -> None:
    me, ranks = unisono.get_rank(), unisono.get_world_size()
    for name, size in product(("fused ring of 4", "all pairs of 4, 4 chunks each"), (1, 3, 16, 1001, 100_003)):
        file, tensor = tmp_path / f"{name} on {me}.xml", torch.arange(size) + 7 * me
        file.write_text(FILES[name])
        unisono.all_reduce(tensor, algorithm=f"{file}")
        assert torch.equal(tensor, ranks * torch.arange(size) + 7 * sum(range(ranks))), (name, size)


def wait_for(work: Any) -> None:
    """Wait for an asynchronous call; None: the call was not."""
    if work is not None:
        work.wait()


@pytest.mark.ranks(2)
def test_factor_scales_what_earlier_calls_leave() -> None:
    """Rank 0 makes three calls before rank 1 makes the first."""
    me, tensor, half = unisono.get_rank(), torch.ones(3), unisono.premul_sum(0.5)
    if me:
        unisono.recv(None, 0)
    works: list[Any] = [unisono.all_reduce(tensor, op, async_op=True) for op in ("sum", half, half)]
    if not me:
        unisono.send(tensor, 1)
    unisono.all_reduce(tensor, unisono.premul_sum(3.0))
    for work in works:
        work.wait()
    assert tensor.tolist() == [12.0] * 3
