"""Tables made of tables keep their promises; tables on data, in numpy."""

from collections.abc import Callable
from math import lcm

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.schedule_oracles import is_right
from unisono.base.errors import AlgorithmError, ArgumentError
from unisono.schedule.algorithms import CATALOGUE, all_gather, broadcast, scatter, table
from unisono.schedule.combine import fold, on, once, par, pipeline, seq, transpose
from unisono.schedule.moves import check_rows
from unisono.schedule.proof import prove
from unisono.schedule.table import ADD, DCHUNK, SCHUNK, N, Schedule, T, expand, send, trace, unwrap

pytestmark = pytest.mark.quick

PROPERTY = settings(max_examples=60)
DUALS = ["broadcast", "reduce", "scatter", "gather", "all_gather", "reduce_scatter", "all_to_all"]


@st.composite
def schedules(draw: st.DrawFn, *collectives: str, ranks: int | None = None, root: int | None = None) -> Schedule:
    """A table of the catalogue, for some of these collectives (or any)."""
    p = draw(st.integers(1, 9)) if ranks is None else ranks
    fit = [a for a in CATALOGUE.values() if a.allows(p) and (not collectives or a.collective in collectives)]
    return draw(st.sampled_from(fit)).schedule(p, draw(st.integers(0, p - 1)) if root is None else root)


def widened(schedule: Schedule, chunks: int) -> Schedule:
    """The same on a buffer cut into more chunks."""
    cells = np.arange(chunks).reshape(schedule.chunks, -1)
    return on(schedule, schedule.ranks, range(schedule.ranks), chunks=chunks, cells=cells)


@PROPERTY
@given(schedules(*DUALS))
def test_transpose_keeps_the_dual_contract(schedule: Schedule) -> None:
    dual = transpose(schedule)
    prove(dual)
    assert is_right(dual, 37)
    again = transpose(dual)
    assert np.array_equal(again.rows, schedule.rows)
    assert (again.collective, again.root, again.result) == (schedule.collective, schedule.root, schedule.result)


@PROPERTY
@given(schedules(), st.integers(1, 4), st.integers(0, 3))
def test_pipeline_keeps_the_contract(schedule: Schedule, segments: int, lag: int) -> None:
    piped = pipeline(schedule, segments, lag)
    prove(piped)
    assert is_right(piped, 37)
    assert piped.chunks == segments * schedule.chunks
    assert piped.rounds == (schedule.rounds + (segments - 1) * lag if len(schedule.rows) else 0)


SEQUELS = [
    ("reduce", "broadcast", "all_reduce"),
    ("reduce_scatter", "all_gather", "all_reduce"),
    ("scatter", "all_gather", "broadcast"),
]


@PROPERTY
@given(st.sampled_from(SEQUELS), st.data(), st.integers(1, 9))
def test_two_tables_make_a_third(names: tuple[str, str, str], data: st.DataObject, p: int) -> None:
    root = data.draw(st.integers(0, p - 1))
    first, second = (data.draw(schedules(name, ranks=p, root=root)) for name in names[:2])
    chunks = lcm(first.chunks, second.chunks)
    both = seq(widened(first, chunks), widened(second, chunks)).replace(collective=names[2])
    assert prove(both).same_bits is (True if names[2] == "all_reduce" else None)
    assert is_right(both, 37)
    assert both.rounds == first.rounds + second.rounds
    if names[2] == "broadcast":
        lean = once(both)
        prove(lean)
        assert len(lean.rows) == (p - 1) * lean.chunks
        prove(transpose(lean))


RING, LINE = table(all_gather.ring, 3), table(broadcast.linear, 3)
MORE = trace(lambda r, p, root: [send(0, 1, 0, to=3, n=2, dbuf=T)], 2, 2, "broadcast", root=0)
SCRATCH = MORE.replace(scratch=4)
REFUSED = [
    (lambda: seq(RING, LINE), r"3 ranks, 3 chunks, .*: 3 ranks, 1 chunks"),
    (lambda: par(RING, LINE), r"3 ranks, 3 chunks, .*: 3 ranks, 1 chunks"),
    (seq, "got parts of nothing"),
    (par, "got parts of nothing"),
    (lambda: transpose(CATALOGUE["all_reduce.ring"].schedule(3)), "all_reduce has no dual"),
    (lambda: once(CATALOGUE["reduce.linear"].schedule(3)), "only tables that copy"),
    (lambda: on(RING, 4, [0, 1]), r"2 ranks and cells for 3 chunks, expected 3 and 3"),
    (lambda: pipeline(RING, 0), "0 segments"),
    (lambda: fold(RING, 4), "not an all_reduce"),
    (lambda: fold(CATALOGUE["all_reduce.ring"].schedule(2), 5), "not an all_reduce that can be extended to 5 ranks"),
    (lambda: on(SCRATCH, 3, [0, 1]), "scratch chunks"),
    (lambda: seq(SCRATCH, SCRATCH.replace(scratch=0)), "4 of scratch"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_mismatched_tables_are_refused(make: Callable[[], Schedule], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_root_is_renamed_with_its_rank() -> None:
    renamed = on(LINE, 3, [2, 0, 1])
    assert renamed.root == 2
    prove(renamed)


def test_combinators_leave_their_parts_alone() -> None:
    part = table(scatter.binomial, 5, 2)
    before = part.rows.copy()
    seq(part, part), par(part, part), transpose(part), pipeline(part, 3), on(part, 5, range(5)), once(part)
    assert np.array_equal(part.rows, before)


def test_splitting_runs_keeps_the_order_of_writes() -> None:
    """A run that passes the end and is copied first must still come before the adds that follow it."""
    both = [send(1, 0, 2, n=2, dbuf=1), send(0, 0, 0, n=3, dbuf=1, op=ADD)]
    schedule = trace(lambda r, p: [both], 2, 3, "reduce", root=None, result=1)
    split = unwrap(schedule)
    assert split[:, N].tolist() == [1, 1, 3]
    assert sorted(expand(schedule).tolist()) == sorted(expand(Schedule(2, 3, split, "reduce")).tolist())


def test_runs_end_with_scratch() -> None:
    """Which has more chunks than the vector."""
    assert unwrap(SCRATCH)[:, [SCHUNK, DCHUNK, N]].tolist() == [[0, 3, 1], [1, 0, 1]]
    assert expand(SCRATCH)[:, [SCHUNK, DCHUNK]].tolist() == [[0, 3], [1, 0]]
    check_rows(SCRATCH)
    with pytest.raises(AlgorithmError, match="there are only the chunks 0 to 1"):
        check_rows(MORE)
