"""What boards say: what was written last, whatever the bytes; and their copies, as other hosts get them."""

import json
import os
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from unisono.base.records import CallRecord, Departure, DepartureKind, GivenUp, Proposal, Wait
from unisono.engine.memory.board import BOARD_BYTES, MAX_RANKS, Board
from unisono.engine.process.alive import watch_process

pytestmark = pytest.mark.quick

RANKS = st.frozensets(st.integers(0, MAX_RANKS - 1), max_size=5) | st.just(frozenset(range(MAX_RANKS)))
ODD = [("gave_up", GivenUp(1, reason="\ud800")), ("attempt", 1, "\ud800"), ("gone", DepartureKind.RAISED, "\ud800")]
"""UTF-8 cannot encode surrogates. Messages of exceptions may have some."""
TEXT = st.text(st.characters(), max_size=150)
BALLOTS = st.integers(0, 1 << 63)
PROPOSALS = st.builds(Proposal, RANKS, st.booleans(), st.booleans(), BALLOTS, BALLOTS, RANKS, st.integers(-1, 1023))
RECORDS = st.builds(CallRecord, TEXT, where=TEXT, counts=st.none() | st.just((6,)))
WRITES = st.one_of(
    st.tuples(st.just("process"), st.integers(1, 1 << 30), st.integers(0, 1 << 60)),
    st.tuples(st.just("gone"), st.sampled_from(DepartureKind), TEXT),
    st.tuples(st.just("run"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["let_go", "parent_tells_end"]), st.just(1)),
    st.tuples(st.just("call"), st.integers(1, 5), RECORDS),
    st.tuples(st.just("gave_up"), st.builds(GivenUp, st.integers(1, 99), st.booleans(), RANKS, TEXT)),
    st.tuples(st.just("proposal"), PROPOSALS),
    st.tuples(st.just("attempt"), st.integers(1, 99), TEXT),
    st.tuples(st.just("wait"), st.none() | st.builds(Wait, st.text(max_size=9), TEXT, st.just((2,)))),
)


def board(data: bytes = b"") -> Board:
    return Board(memoryview(bytearray(data.ljust(BOARD_BYTES, b"\0"))))


class Said:
    """All that a board should say."""

    def __init__(self) -> None:
        self.words: dict[str, Any] = dict.fromkeys(("pid", "ticks", "let_go", "run"), 0)
        self.words |= {"gave_up": GivenUp(), "attempt": (0, ""), "proposal": None, "wait": None}
        self.calls: dict[int, tuple[int, CallRecord]] = {}
        self.gone: dict[int, Departure] = {}

    def write(self, what: str, first: Any, *rest: Any) -> None:
        if what == "gone":  # the first of a run counts
            self.gone.setdefault(self.words["run"], Departure(first, *map(escaped, rest)))
            self.gone = {self.words["run"]: self.gone[self.words["run"]]}
        elif what == "call":
            self.calls[first & 1] = first, *rest
        elif what == "process":
            self.words["pid"], self.words["ticks"] = first, *rest
        elif what == "gave_up":
            self.words[what] = first._replace(reason=escaped(first.reason))
        else:
            self.words[what] = (first, *map(escaped, rest)) if rest else first

    def check(self, of: Board) -> None:
        assert {name: getattr(of, name) for name in self.words} == self.words
        assert of.gone == self.gone.get(self.words["run"])
        assert {number: of.call(number) for number in range(1, 6) if of.call(number)} == dict(self.calls.values())


def escaped(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


@settings(max_examples=examples(400))
@example([(True, write) for write in ODD])
@given(st.lists(st.tuples(st.booleans(), WRITES), max_size=20))
def test_board_and_copy_say_what_was_written_last(steps: list[tuple[bool, tuple[Any, ...]]]) -> None:
    original, copy, said = board(), board(), Said()
    for copies, (what, *arguments) in steps:
        if hasattr(original, f"set_{what}"):
            getattr(original, f"set_{what}")(*arguments)
        else:
            setattr(original, what, *arguments)
        if what == "run":  # whoever begins a run tells each host, so no copy has to
            copy.run = arguments[0]
        if what != "parent_tells_end":
            said.write(what, *arguments)
        said.check(original)
        if copies:
            copy.copy(original.image())
            said.check(copy)
            assert not copy.parent_tells_end


def test_dead_rank_keeps_its_record() -> None:
    original, copy = board(), board()
    copy.set_gone(DepartureKind.DIED, "died")
    copy.copy(original.image(), keep_gone=True)
    assert copy.gone == (DepartureKind.DIED, "died")
    copy.copy(original.image())
    assert copy.gone is None


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
    copy = board()
    copy.copy(bytes(page.page))
    assert copy.pid in (0, page.pid)
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
