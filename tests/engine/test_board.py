"""What boards say: what was written last, whatever the bytes; and their copies, as other hosts get them."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from unisono.base.records import CallRecord, Departure, DepartureKind, GivenUp, Proposal, Wait
from unisono.engine.memory.board import BOARD_BYTES, MAX_RANKS, Board
from unisono.engine.process.alive import watch_process

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


def board(data: bytes = b"") -> Board:
    return Board(memoryview(bytearray(data.ljust(BOARD_BYTES, b"\0"))))


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


def test_a_board_says_what_was_written_last() -> None:
    page = board()
    assert (page.pid, page.gone, page.call(1), page.gave_up) == (0, None, None, GivenUp())
    page.set_process(4711, 99)
    reduce = CallRecord("all_reduce", "float32", (6,), op="sum", algorithm="all_reduce.ring", where="train.py:88")
    gather = CallRecord("gather", counts=None, root=2, where="train.py:89")
    page.set_call(1, reduce)
    page.set_call(2, gather)
    assert (page.call(1), page.call(2)) == (reduce, gather)
    page.set_call(3, CallRecord("barrier"))
    assert page.call(1) is None
    late = GivenUp(3, True, frozenset({1, 2}), "WaitTimeout: too late")
    page.set_gave_up(late)
    assert page.gave_up == late
    page.set_gone(DepartureKind.DIED, "died")
    page.set_gone(DepartureKind.RETURNED, "returned")
    assert (page.pid, page.gone) == (4711, Departure(DepartureKind.DIED, "died"))
    page.run = 7
    assert page.gone is None
    page.set_gone(DepartureKind.RETURNED, "returned")
    assert page.gone == Departure(DepartureKind.RETURNED, "returned")


def test_a_board_holds_every_rank() -> None:
    """A late rank stays a late rank, however many others are missing, too."""
    page, all_of_them = board(), frozenset(range(MAX_RANKS))
    page.set_gave_up(GivenUp(9, True, all_of_them, "WaitTimeout: " + "x" * 5000))
    assert page.gave_up[:3] == (9, True, all_of_them)


def test_long_words_stay_in_their_field() -> None:
    page = board()
    long = CallRecord("reduce", "float32", (5,), op="ü" * 5000, words="é" * 5000, refused="ß" * 5000, where="ä" * 5000)
    page.set_call(1, long)
    page.set_call(2, long._replace(where="ä" * 5000 + "/train.py:88"))
    page.set_gone(DepartureKind.RAISED, "ö" * 5000)
    page.set_gave_up(GivenUp(1, reason="ä" * 5000))
    first, second = page.call(1), page.call(2)
    assert second is not None
    assert (first.collective, first.dtype, first.counts, set(first.op)) == ("reduce", "float32", (5,), {"ü"})
    assert second.where.endswith("train.py:88")
    assert set(page.gone.words) <= {"ö", "\N{REPLACEMENT CHARACTER}"}
    assert set(page.gave_up.reason) <= {"ä", "\N{REPLACEMENT CHARACTER}"}


def test_surrogates_on_a_board() -> None:
    """UTF-8 cannot encode them. Messages of exceptions and names of files may have some."""
    page = board()
    record = CallRecord("all_reduce", refused="\ud800", where="\udcff.py:1")
    page.set_call(1, record)
    assert page.call(1) == record
    page.set_gave_up(GivenUp(1, reason="\ud800"))
    page.set_attempt(1, "\ud800")
    page.set_gone(DepartureKind.RAISED, "\ud800")
    assert {page.gave_up.reason, page.attempt[1], page.gone.words} == {r"\ud800"}


records = st.builds(
    CallRecord,
    st.sampled_from(["all_reduce", "gather", "x" * 60]),
    st.sampled_from(["", "float32"]),
    st.none() | st.lists(st.integers(0, 1 << 62), max_size=8).map(tuple),
    *[st.sampled_from(["", "0123456789abcdef"]), st.text(max_size=1500), st.integers(0, 1023)],
    *[st.text(max_size=1500)] * 5,
)


@given(records)
@settings(max_examples=examples(300))
def test_any_record_fits_and_comes_back(record: CallRecord) -> None:
    data = record.pack(948)
    assert len(data) <= 948
    back = CallRecord.unpack(data)
    assert (back.collective, back.dtype, back.counts, back.root) == (
        record.collective, record.dtype, record.counts, record.root,
    )  # fmt: skip
    if len(json.dumps(record, ensure_ascii=False).encode()) <= 948:
        assert back == record


@given(st.binary(max_size=BOARD_BYTES), st.integers(0, 9))
@settings(max_examples=examples(300))
def test_any_bytes_on_a_board_are_read(data: bytes, number: int) -> None:
    page = board(data)
    assert page.call(number) is None or isinstance(page.call(number), CallRecord)
    assert page.gone is None or isinstance(str(page.gone), str)
    assert all(0 <= rank < 1024 for rank in page.gave_up.blames)
    assert 0 <= page.pid < 1 << 31
    fd = watch_process(page.pid or 1 << 30, page.ticks)
    if fd is not None:
        os.close(fd)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=20,
)


@given(st.binary(max_size=200) | json_like.map(lambda it: json.dumps(it).encode()))
@settings(max_examples=examples(300))
def test_any_bytes_are_a_record_or_a_value_error(data: bytes) -> None:
    try:
        record = CallRecord.unpack(data)
    except ValueError:
        return
    assert isinstance(hash(record), int)
    assert isinstance(record.text, str)
    assert CallRecord.unpack(record.pack(1 << 20)) == record
