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
from tests.support.matrix import ALIASED, FORMS, REDUCING, Case, ops
from tests.support.matrix_driver import algorithms, check, forget, roots
from tests.support.on_ranks import in_new_world
from unisono.base.config import Config
from unisono.base.errors import ArgumentError
from unisono.schedule import send
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.exchange import write

SIZES = (1, 2, 3, 4, 5, 7)
WHOLE = [form for form in FORMS if f"{form}_single" not in FORMS]
"""The calls, without the forms for lists of those that have another one."""

BOTH = (False, True)


def usual(form: str, n: int, **more: Any) -> Case:
    """A call with float32 and sums, of numbers that any algorithm gives the same results of."""
    return Case(form, "float32", ops(form, "float32")[0], n, exact=True, **more)


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.ranks(*SIZES)
def test_every_algorithm_and_form(form: str) -> None:
    calls = 0
    for root, n, name in product(roots(form), (0, 1, 7, 1000), [None, *algorithms(form)]):
        for shared, alias in product(BOTH, BOTH if form in ALIASED else [False]):
            check(usual(form, n, shared=shared, root=root, seed=calls % 3, alias=alias), name)
            calls += 1
    assert calls >= 8


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("form", WHOLE)
@pytest.mark.ranks(2, 3, 5)
def test_every_algorithm_on_large_tensors(form: str, ranks: int) -> None:
    for name, shared in product([None, *algorithms(form)], BOTH):
        check(usual(form, 100_003, shared=shared, root=ranks - 1, seed=int(shared)), name)
    forget()


@in_new_world(3, config=Config(segment_bytes=16 << 10))
def test_every_algorithm_in_many_small_segments() -> None:
    for form in WHOLE:
        for name, (n, seed) in product([None, *algorithms(form)], ((30_011, 1), (9_001, 2), (30_011, 3))):
            check(usual(form, n, root=1, seed=seed), name)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("op", ["avg", "product", "min", "max"])
@pytest.mark.ranks(4)
def test_every_op_with_every_algorithm(op: str) -> None:
    for form in REDUCING:
        for name in algorithms(form) if op in ops(form, "float32") else ():
            for dtype in ("float32", "bfloat16") if op == "avg" else ("float16", "int64"):
                check(Case(form, dtype, op, 501, root=1, exact=True), name)


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


@pytest.mark.ranks(3)
def test_shapes_may_differ_where_counts_do_not() -> None:
    rank = unisono.get_rank()
    shape = [(6,), (2, 3), (1, 6, 1)][rank]
    for given in (shape, shape[::-1]):
        tensor = torch.full(given, float(rank))
        unisono.all_reduce(tensor)
        assert tensor.flatten().tolist() == [3.0] * 6
    stacked = torch.empty(3, *shape)
    unisono.all_gather_single(stacked, torch.full(shape, float(rank)))
    assert stacked.flatten().tolist() == [0.0] * 6 + [1.0] * 6 + [2.0] * 6


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.ranks(2, 3, 5)
def test_bits_depend_on_the_numbers_only(dtype: str) -> None:
    """Numbers of very different sizes are added in rank order, wherever they lie, on both sides of every limit."""
    counts, names = (1, 3, 64, 100, 1000, 2047, 2049, 4097, 9_001, 16_385, 33_001), (None, "one_shot", "two_shot")
    for op, n, layout, shared, name in product(("sum", "avg"), counts, ("contiguous", "offset"), BOTH, names):
        check(Case("all_reduce", dtype, op, n, layout, shared=shared, seed=n), name)


UNEVEN = [form for form, kinds in FORMS.items() if "uneven" in kinds]


@pytest.mark.sampled(most=1)
@pytest.mark.ranks(2, 3)
def test_blocks_longer_than_a_segment() -> None:
    for seed, form in product(range(2), UNEVEN):
        check(usual(form, 300_000, blocks="uneven", seed=seed, root=seed))
    forget()


@pytest.mark.sampled(most=1)
@pytest.mark.ranks(3, 4)
def test_every_algorithm_takes_uneven_blocks() -> None:
    for form in UNEVEN:
        for name, seed in product(algorithms(form), (1, 2)):
            check(usual(form, 9, blocks="uneven", seed=seed, root=seed), name)


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


def test_late_peers_cause_no_false_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks up at the gate may see a peer in the next call already. Ranks have the settings of the environment."""

    def many(calls: int) -> None:
        assert unisono.init().engine.config.look_up_s == 1e-6
        late = random.Random(unisono.get_rank())
        for seed in range(calls):
            check(Case("all_reduce", "float32", "sum", 1, seed=seed % 31))
            if late.random() < 0.5:
                time.sleep(late.random() * 1e-3)

    monkeypatch.setenv("UNISONO_LOOK_UP_S", "0.000001")
    monkeypatch.setenv("UNISONO_SPINS", "0")
    with unisono.World(3, timeout_s=60) as world:
        world.run(many, examples(600))


def put(folder: Path, name: str) -> str:
    path = folder / f"{name} on {unisono.get_rank()}.xml"
    path.write_text(FILES[name])
    return str(path)


@pytest.mark.ranks(4)
def test_file_of_an_algorithm_takes_any_size(tmp_path: Path) -> None:
    me, ranks = unisono.get_rank(), unisono.get_world_size()
    for name in ("fused ring of 4", "all pairs of 4, 4 chunks each"):
        path = put(tmp_path, name)
        for size in (1, 3, 16, 1001, 100_003):
            tensor = torch.arange(size) + 7 * me
            unisono.all_reduce(tensor, algorithm=path)
            assert torch.equal(tensor, ranks * torch.arange(size) + 7 * sum(range(ranks))), (name, size)


@pytest.mark.ranks(4)
def test_file_is_for_one_collective(tmp_path: Path) -> None:
    me = unisono.get_rank()
    tensor, out = torch.arange(12) + 100 * me, torch.empty(12, dtype=torch.int64)
    unisono.all_to_all_single(out, tensor, algorithm=put(tmp_path, "all_to_all of 2x2"))
    assert out.tolist() == [100 * q + 3 * me + k for q in range(4) for k in range(3)]
    with pytest.raises(ArgumentError, match=r"all_to_all.* is an algorithm for all_to_all, .* all_reduce"):
        unisono.all_reduce(tensor, algorithm=put(tmp_path, "all_to_all of 2x2"))


@pytest.mark.ranks(3)
def test_file_is_for_one_number_of_ranks(tmp_path: Path) -> None:
    path = put(tmp_path, "fused ring of 4")
    with pytest.raises(ArgumentError, match=r"\d\.xml is a table for 4 ranks and root 0, expected one for 3 ranks"):
        unisono.all_reduce(torch.zeros(3), algorithm=path)
    with pytest.raises(ArgumentError, match=r"cannot read .*no\.xml: No such file"):
        unisono.all_reduce(torch.zeros(3), algorithm=f"{tmp_path}/no.xml")


@pytest.mark.ranks(4)
def test_bits_of_a_file_are_those_of_its_table(tmp_path: Path) -> None:
    """An exported algorithm gives the same bits when it is read from its file."""
    for name in ("one_shot", "ring", "rabenseifner"):
        path = f"{tmp_path}/{name}.xml"
        write(CATALOGUE[f"all_reduce.{name}"].schedule(4), path, "msccl")
        one = torch.rand(1000, generator=torch.Generator().manual_seed(unisono.get_rank()))
        two = one.clone()
        unisono.all_reduce(one, algorithm=name)
        unisono.all_reduce(two, algorithm=path)
        assert torch.equal(one, two)


def wait_for(work: Any) -> None:
    """Wait for an asynchronous call; None: the call was not."""
    if work is not None:
        work.wait()


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.ranks(2)
def test_negative_views_keep_their_sign(async_op: bool) -> None:
    """Both are contiguous, and DLPack does not tell that they are negative."""
    me, out = unisono.get_rank(), torch.zeros(4)
    for _ in range(3):
        for x in ((torch.ones(2) + me), torch.complex(*2 * [-torch.ones(2) - me]).conj().imag):
            for view in (torch.as_strided(x, (2,), (1,)), torch._neg_view(-x)):
                wait_for(unisono.all_gather_single(out, view, async_op=async_op))
                assert out.tolist() == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.ranks(2)
def test_inference_tensors_of_any_layout(inside: bool, async_op: bool) -> None:
    me = unisono.get_rank()
    with torch.inference_mode():
        tensor, outs = torch.arange(6.0).reshape(2, 3).t() + me, [torch.zeros(2, 3).t() for _ in range(2)]
    with torch.inference_mode(inside):
        for call in (
            lambda: unisono.all_gather(outs, tensor, async_op=async_op),
            lambda: unisono.all_reduce_coalesced([tensor], unisono.premul_sum(2.0), async_op=async_op),
            lambda: unisono.gather(tensor, None if me else outs, async_op=async_op),
        ):
            wait_for(call())
    assert tensor.tolist() == [[2.0, 14.0], [6.0, 18.0], [10.0, 22.0]]
    if not me:
        assert outs[1].tolist() == tensor.tolist()


@pytest.mark.ranks(2)
def test_factor_scales_what_earlier_calls_leave() -> None:
    """Rank 0 makes all its calls before rank 1 makes the first."""
    unisono.barrier()
    if unisono.get_rank():
        time.sleep(0.2)
    tensor, half = torch.ones(3), unisono.premul_sum(0.5)
    works: list[Any] = [unisono.all_reduce(tensor, op, async_op=True) for op in ("sum", half, half)]
    unisono.all_reduce(tensor, unisono.premul_sum(3.0))
    for work in works:
        work.wait()
    assert tensor.tolist() == [12.0] * 3
