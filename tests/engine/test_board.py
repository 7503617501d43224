"""Copies of boards, as other hosts get them: equal for readers, and never half of one word and half of the next."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from unisono.base.records import CallRecord, DepartureKind, GivenUp, Proposal, Wait
from unisono.engine.memory.board import BOARD_BYTES, Board

pytestmark = pytest.mark.quick

RANKS = st.frozensets(st.integers(0, 1023), max_size=5)
BALLOTS = st.integers(0, 1 << 63)
PROPOSALS = st.builds(Proposal, RANKS, st.booleans(), st.booleans(), BALLOTS, BALLOTS, RANKS, st.integers(-1, 1023))
WRITES = st.one_of(
    st.tuples(st.just("set_process"), st.integers(1, 1 << 30), st.integers(0, 1 << 60)),
    st.tuples(st.just("set_gone"), st.sampled_from(DepartureKind), st.text(max_size=2000)),
    st.tuples(st.just("run"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["let_go", "parent_tells_end"]), st.just(1)),
    st.tuples(st.just("set_call"), st.integers(1, 1 << 63), st.builds(CallRecord, st.text(max_size=1500))),
    st.tuples(st.just("set_gave_up"), st.builds(GivenUp, st.integers(1, 99), st.booleans(), RANKS, st.text())),
    st.tuples(st.just("set_proposal"), PROPOSALS),
    st.tuples(st.just("set_attempt"), st.integers(1, 99), st.text(max_size=1500)),
    st.tuples(
        st.just("set_wait"), st.none() | st.builds(Wait, st.text(max_size=9), st.text(max_size=1500), st.just((2,)))
    ),
)


def board() -> Board:
    return Board(memoryview(bytearray(BOARD_BYTES)))


def said(of: Board, numbers: set[int]) -> list[object]:
    """All that a board says."""
    calls = [of.call(number) for number in sorted(numbers)]
    told = [of.gave_up, of.attempt, of.proposal, of.wait]
    return [of.pid, of.ticks, of.let_go, of.gone, *calls, *told]


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.booleans(), WRITES), max_size=20))
def test_a_copy_says_the_same(steps: list[tuple[bool, tuple[object, ...]]]) -> None:
    original, copy = board(), board()
    numbers: set[int] = set()
    for copies, (name, *arguments) in steps:
        if str(name).startswith("set_"):
            getattr(original, str(name))(*arguments)
        else:
            setattr(original, str(name), *arguments)
        if name == "run":  # which each host is told by who begins it
            copy.run = arguments[0]
        numbers |= {int(number) for number in arguments[:1] if name == "set_call"}  # type: ignore[call-overload]
        if copies:
            copy.copy(original.image())
            assert said(copy, numbers) == said(original, numbers)
            assert not copy.parent_tells_end


def test_dead_rank_keeps_its_record() -> None:
    original, copy = board(), board()
    copy.set_gone(DepartureKind.DIED, "died")
    copy.copy(original.image(), keep_gone=True)
    assert copy.gone == (DepartureKind.DIED, "died")
    copy.copy(original.image())
    assert copy.gone is None


def test_a_damaged_image_is_no_error() -> None:
    copy = board()
    copy.copy(b"\xff" * BOARD_BYTES)
    assert (copy.pid, copy.gone, copy.gave_up) == (0, None, GivenUp())
