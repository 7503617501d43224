"""One case of the matrix on this rank: what it passes, the call, and what the oracle says that should come of it.

This runs on the ranks. What a rank passes depends on the case alone, so every rank knows what all others pass.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

import unisono
from tests.support import oracle
from tests.support.matrix import CUSTOM, REDUCING, Case
from tests.support.matrix_layouts import Held, differs, pick, readable
from tests.support.reducers_driver import bits, data
from unisono.schedule import ROOTED
from unisono.schedule.algorithms import CATALOGUE

IN_PLACE = ("all_reduce", "reduce", "scan", "exscan", "broadcast")
ONE_IN = ("gather", "all_gather", "all_gather_single")
ONE_OUT = ("scatter", "reduce_scatter", "reduce_scatter_single")

CHANGED = "an input is not what it was"
"""A note on the error of a call."""


def factor(rank: int) -> float:
    return 0.75 - rank


@lru_cache(maxsize=256)
def sizes(case: Case, p: int) -> tuple[tuple[int, ...], ...]:
    """[s][d]: the elements of the block that goes from rank s to rank d; of those that go to all, d does not matter."""
    if case.blocks == "even":
        return ((case.n,) * p,) * p
    draw = random.Random(case.seed)
    table = [[draw.choice((0, 1, case.n, case.n + draw.randrange(5))) for _ in range(p)] for _ in range(p)]
    if case.form in ONE_IN:
        table = [[row[0]] * p for row in table]
    elif case.form in ONE_OUT:
        table = [table[0]] * p
    return tuple(map(tuple, table))


def gives(case: Case, p: int, rank: int) -> list[int]:
    """The elements of the tensors that a rank passes as inputs."""
    if case.form in IN_PLACE or case.form in ONE_IN:
        return [sizes(case, p)[rank][0]]
    row = list(sizes(case, p)[rank])
    if case.form == "scatter" and rank != case.root % p:
        return []
    return [sum(row)] if case.form.endswith("_single") else row


def takes(case: Case, p: int, rank: int) -> list[int]:
    """The elements of the tensors that a rank passes as outputs; in place, as inputs."""
    if case.form in IN_PLACE:
        return gives(case, p, rank)
    if case.form in ONE_OUT:
        return [sizes(case, p)[0][rank]]
    column = [row[rank] for row in sizes(case, p)]
    if case.form == "gather" and rank != case.root % p:
        return []
    return [sum(column)] if case.form.endswith("_single") else column


def input_layouts(case: Case, p: int, rank: int) -> list[str]:
    written = case.form in IN_PLACE and not (
        (case.form == "broadcast" and rank == case.root % p) or (case.form == "reduce" and rank != case.root % p)
    )
    return [pick(case.layout, rank * 5 + k, n, written) for k, n in enumerate(gives(case, p, rank))]


@lru_cache(maxsize=256)
def inputs(case: Case, p: int) -> list[list[torch.Tensor]]:
    most = max(sum(gives(case, p, rank)) for rank in range(p))
    passed = []
    for rank, whole in enumerate(data(case.dtype, p, most, case.seed, case.op.strip("-") if case.exact else "")):
        parts = torch.split(whole[: sum(gives(case, p, rank))], gives(case, p, rank))
        passed.append([readable(*both) for both in zip(parts, input_layouts(case, p, rank), strict=True)])
    return passed


@lru_cache(maxsize=256)
def wanted(case: Case, p: int) -> list[list[torch.Tensor]]:
    """What every rank should end with, flat, cut as its outputs are."""
    passed = inputs(case, p)
    whole: list[Any] = [torch.cat(parts) if parts else None for parts in passed]
    op: Any = CUSTOM.get(case.op, case.op)
    if case.op == "premul_sum":
        whole, op = [tensor * factor(rank) for rank, tensor in enumerate(whole)], "sum"
    root, table = case.root % p, sizes(case, p)
    ends = oracle.expected(case.form.removesuffix("_single"), whole, op, root, table)
    pieces = [torch.split(end, takes(case, p, rank)) if end is not None else () for rank, end in enumerate(ends)]
    return [[piece.view(getattr(torch, case.dtype)) for piece in mine] for mine in pieces]


def arguments(case: Case, me: int, p: int, given: list[torch.Tensor], taken: list[torch.Tensor] | None) -> list[Any]:
    """As the call wants them; taken None where the sizes are not known."""
    root = case.root % p
    op: Any = unisono.premul_sum(factor(me)) if case.op == "premul_sum" else CUSTOM.get(case.op, case.op)
    single = case.form.endswith("_single")
    inp: Any = given[0] if single or case.form in (*IN_PLACE, *ONE_IN) else given or None
    out: Any = taken[0] if taken and (single or case.form in ONE_OUT) else taken or None
    sides = [inp] if case.form in IN_PLACE else [inp, out] if case.form == "gather" else [out, inp]
    if case.form == "all_to_all_single" and case.blocks == "uneven":
        return [*sides, [row[me] for row in sizes(case, p)], list(sizes(case, p)[me])]
    return [*sides, *([root] if case.form in ROOTED else []), *([op] if case.form in REDUCING else [])]


def begin(case: Case, me: int, p: int, make: Callable[[list[Any]], Any]) -> Callable[[], str]:
    """Make a call as rank `me` of `p`. Returns what waits for its end and says what is wrong with it, or nothing.

    Errors of the call are raised, with the note CHANGED where it applies.
    make: makes the call with these arguments, in the foreground or, with the case's async_op, in the background.
    """
    dtype = getattr(torch, case.dtype)
    same = replace(case, shared=False, async_op=False, alias=False)  # for the caches
    want, values = wanted(same, p)[me], inputs(same, p)[me]
    given = [
        Held(layout, len(block), dtype, case.shared, block)
        for layout, block in zip(input_layouts(case, p, me), values, strict=True)
    ]
    taken: list[Held] = []
    if case.form not in IN_PLACE and case.blocks != "unknown":
        places = [pick(case.layout, me * 3 + k + 1, len(block), True) for k, block in enumerate(want)]
        taken = [Held(place, len(block), dtype, case.shared, None) for place, block in zip(places, want, strict=True)]
    inps, outs = [held.tensor for held in given], [held.tensor for held in taken]
    expected: list[tuple[Held, torch.Tensor | None]] = [(held, None) for held in given]
    expected += zip(taken, want, strict=bool(taken))
    if case.alias and inps and outs:
        expected = _alias(case, me, (given, inps, values), (taken, outs, want))

    @contextmanager
    def noting() -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if any(held.check(None) for held in given):
                error.add_note(CHANGED)
            raise

    with noting():
        made = make(arguments(case, me, p, inps, outs if case.blocks != "unknown" else None))

    def finish() -> str:
        result = made
        if case.async_op:
            with noting():
                made.wait()
            result = made.result() if case.blocks == "unknown" else None
        if case.form in IN_PLACE:
            only_read = {"reduce": me != case.root % p, "broadcast": me == case.root % p, "exscan": me == 0}
            return given[0].check(None if only_read.get(case.form) else want[0])
        found = [held.check(wished) for held, wished in expected]
        if case.blocks == "unknown":
            found += [differs(*both) for both in zip(result, want, strict=True)]
        return "; ".join(filter(None, found))

    return finish


def _alias(case: Case, me: int, inputs: Any, outputs: Any) -> list[tuple[Held, torch.Tensor | None]]:
    """Let the own block of the longer side be the other side, too. Returns what is held, and what it must become."""
    swapped = case.form.startswith(("scatter", "reduce_scatter"))
    (_, short, one), (longs, long, many) = (outputs, inputs) if swapped else (inputs, outputs)
    if case.form.endswith("_single"):
        n = len(one[0])
        own = slice(me * n, me * n + n)
        whole = bits(many[0]).clone()
        whole[own] = bits(one[0])
        short[0] = long[0].view(-1)[own]
        if not swapped:
            bits(short[0]).copy_(bits(one[0]))
        return [(longs[0], whole.view(many[0].dtype))]
    short[0] = long[me]
    if swapped:
        return [(held, one[0] if k == me else None) for k, held in enumerate(longs)]
    bits(longs[me].tensor).copy_(bits(one[0]).view(longs[me].tensor.shape))
    return list(zip(longs, many, strict=True))


def check(case: Case, algorithm: Any = None) -> None:
    """Make the call, and fail if anything is wrong with what this rank ends with.

    algorithm: its name in the catalogue, or a function; None for what the call chooses.
    """

    def make(given: list[Any]) -> Any:
        return getattr(unisono, case.form)(*given, async_op=case.async_op, algorithm=algorithm)

    found = begin(case, unisono.get_rank(), unisono.get_world_size(), make)()
    assert not found, f"{case}, algorithm={algorithm}: {found}"


def algorithms(form: str) -> list[str]:
    collective, size = form.removesuffix("_single"), unisono.get_world_size()
    return [a.name for a in CATALOGUE.values() if a.collective == collective and a.allows(size)]


def roots(form: str) -> list[int]:
    """The first, a middle and the last rank, where there is a root."""
    size = unisono.get_world_size()
    return sorted({0, size // 2, size - 1}) if form in ROOTED else [0]


def forget() -> None:
    """Give up the memory of what was passed and wanted, as that of large calls."""
    inputs.cache_clear()
    wanted.cache_clear()
