"""The matrix: every call, dtype, op, layout and form of blocks, in the foreground or not, in shared memory or not.

Here are the axes and which of their combinations exist; `matrix_driver` makes a call and checks it.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import unisono
from tests.support.matrix_layouts import LAYOUTS, READ_ONLY, exists
from tests.support.reducers_driver import PAIRS
from unisono.engine.reducers import DTYPES

REDUCING = ("all_reduce", "reduce", "scan", "exscan", "reduce_scatter", "reduce_scatter_single")
_MOVING = "broadcast", "scatter", "gather", "all_gather", "all_gather_single", "all_to_all", "all_to_all_single"
FORMS = {
    **dict.fromkeys((*REDUCING, *_MOVING), ("even",)),
    **dict.fromkeys(("reduce_scatter", "scatter", "gather", "all_to_all", "all_to_all_single"), ("even", "uneven")),
    "all_gather": ("even", "uneven", "unknown"),
}
"""The calls, and how their blocks can be: of one size, of several, of several which the taker does not know."""

WRITTEN = ("all_reduce", "scan", "exscan")  # calls whose tensor is written on every rank, but for rank 0 of exscan

ALIASED = ("scatter", "gather", "all_gather", "all_gather_single", "reduce_scatter", "reduce_scatter_single")
"""Calls in which an input and an output may be the same memory."""

MOVED = ("complex32", "float8_e8m0fnu", "float4_e2m1fn_x2", "bits8", "bits16", "int4", "uint1")
"""Some of the dtypes that cannot be combined."""

NAMED = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
SCALED = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
PAIR_OF = {*PAIRS, *((dtype, "premul_sum") for dtype in SCALED), *((dtype, "numbers") for dtype in DTYPES)}
OPS = (*NAMED, "premul_sum", "numbers")
"""Named ops, a factor per rank, and a function of a user's own."""

SIZES = (1, 2, 6, 7, 30, 120, 1001, 2520, 20_006)
"""Of blocks: from those that travel with their flag, up to those that are cut into slices."""


def twice_plus(x: Any, y: Any) -> Any:
    return x * 2 + y


CUSTOM = {"numbers": unisono.make_op(twice_plus, associative=False)}


@dataclass(frozen=True)
class Case:
    """One call on every rank. n: elements of a block, of the largest but one where they differ. root: taken modulo
    the number of ranks. exact: values that every order of combining gives the same results of. alias: the input is the
    output's own block, or the output the input's, in calls of ALIASED."""

    form: str
    dtype: str
    op: str
    n: int
    layout: str = "contiguous"
    blocks: str = "even"
    shared: bool = False
    async_op: bool = False
    root: int = 0
    seed: int = 0
    exact: bool = False
    alias: bool = False


def ops(form: str, dtype: str) -> list[str]:
    """The ops that a call has for a dtype; of a call that only moves, one that is not used."""
    if form not in REDUCING:
        return ["-"]
    known = [op for op in OPS if (dtype, op) in PAIR_OF]
    return [op for op in known if op != "avg" or form not in ("scan", "exscan")]


def layouts(form: str, dtype: str, blocks: str) -> list[str]:
    found = [layout for layout in LAYOUTS if exists(layout, dtype)]
    if form in WRITTEN:
        found = [layout for layout in found if layout not in READ_ONLY]
    if blocks != "even":
        found = [layout for layout in found if layout not in ("scalar", "empty")]
    if blocks != "even" and form == "all_to_all_single":  # it is cut along the first dimension
        found = [layout for layout in found if layout not in ("transposed", "channels_last", "expanded", "mixed")]
    return found


def can_be_shared(form: str, layout: str) -> bool:
    """Can the tensors lie in shared memory? There, the ranks' must be alike: all of them contiguous, or none."""
    return layout != "mixed" and (form not in ("reduce", "broadcast") or layout not in READ_ONLY)


def every(form: str, seed: int) -> Iterator[Case]:
    """All cases of a call. What is no axis (sizes, roots, values) is drawn anew for every layout."""
    draw = random.Random(f"{form} {seed}")
    for dtype, blocks in product((*DTYPES, *MOVED), FORMS[form]):
        for op, layout in product(ops(form, dtype), layouts(form, dtype, blocks)):
            sizes = SIZES[:6] if op == "numbers" else SIZES  # the oracle goes through them number by number
            n = {"scalar": 1, "empty": 0}.get(layout, draw.choice(sizes))
            root, values = draw.randrange(8), draw.randrange(1000)
            for shared, later in product((False, True)[: 1 + can_be_shared(form, layout)], (False, True)):
                yield Case(form, dtype, op, n, layout, blocks, shared, later, root, values)
