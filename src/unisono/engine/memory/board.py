"""Two pages per rank, which its peers read: process id, departure, latest calls, what it gave up, its proposal.

Only slow paths use boards. A field is a word, or a record: a number, a length, and bytes. The number is written last,
so a reader that sees the number sees the bytes, see `engine.memory_order`. A proposal changes: two records take turns,
and a word says which one counts. Bytes that are not a record count as not written.

A departure has the number of its run. Processes stay from one run to the next, so another host's copy of a departure
may come late, when the next run has begun. Each host knows the number of the present run.

The board of a rank of a world also says whether the process answers with its stacks, and in which call the rank waits.
A rank that waits says so again and again: a rank that was stopped in a call may have nothing to wait for any more.
"""

import struct
import time
from collections.abc import Iterable
from typing import Any

from ...base.records import ESCAPED, CallRecord, Departure, DepartureKind, GivenUp, Proposal, Wait
from ..memory_order import RECORD_HEAD, fence, look, order, publish, read_record, write_record

FRESH_NS = 2_000_000_000
"""An older wait does not count. A waiting rank writes it a hundred times as often, unless the machine is very busy."""

MAX_RANKS = 1024
"""The most ranks on one host. Their control lines, boards, logs and notes take 85 MiB."""

PAGE = 4096
LINE = 128
"""Bytes of a control line: two cache lines, because processors fetch pairs."""
BOARD_BYTES = 2 * PAGE
NEWS = PAGE // 2
"""Where the header of an arena has the count of urgent news, in a cache line of its own."""
_PID, _LET_GO, _TICKS, _RUN, _PARENT_TELLS, _STACKS, _PROPOSAL, _SAID = range(0, 64, 8)
_GONE, _CALLS, _GAVE_UP = 64, (1088, 2112), 3136
_PROPOSALS, _ATTEMPT, _WAIT = (PAGE, PAGE + 1024), PAGE + 2048, PAGE + 3072
_ROOM = PAGE - _GAVE_UP - RECORD_HEAD
_COPIED = (_WAIT, _ATTEMPT, _GAVE_UP, *_CALLS)
_RANKS = MAX_RANKS // 8
_VOTE = struct.Struct(f"<??hQQ{_RANKS}s{_RANKS}s")  # a `Proposal`
_MOST_PID = (1 << 31) - 1


def whole_pages(nbytes: int) -> int:
    """Round up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


def first_board(start: int, size: int) -> int:
    """Where the boards of a group of `size` ranks begin, whose memory begins at `start`: behind its control lines."""
    return start + whole_pages(size * LINE)


def _word(at: int) -> Any:
    """A word of a board as an attribute: what the owner has written before it, a reader sees."""
    return property(lambda board: look(board.page, at), lambda board, word: publish(board.page, at, word))


class Board:
    """The board of one rank. The owner writes it, its peers read it.

    ticks: when the process started: see `engine.process.alive.start_ticks`.
    parent_tells_end: 1: the rank's parent promises to write here how the rank has gone, if the rank cannot.
    stacks: where the process writes its stacks, see `engine.process.stacks.answer_with_stacks`; 0: nowhere.
    let_go: 1: after leaving a sub-group, this rank has dropped everything that its peers could reach.
    run: the number of the run in which the rank takes part; 0 without runs. Departures from other runs do not count. A
    run begins on all hosts, also on their copies of this board, before a rank hears of it.
    """

    ticks, parent_tells_end, stacks = _word(_TICKS), _word(_PARENT_TELLS), _word(_STACKS)
    let_go, run = _word(_LET_GO), _word(_RUN)

    def __init__(self, page: memoryview) -> None:
        self.page = page

    @property
    def pid(self) -> int:
        """The process id of the rank; 0 before the rank has joined."""
        pid = look(self.page, _PID)
        return pid if pid <= _MOST_PID else 0

    def set_process(self, pid: int, ticks: int) -> None:
        """Write the process id and start of the rank."""
        self.ticks = ticks
        publish(self.page, _PID, pid)

    def set_gone(self, how: DepartureKind, words: str) -> None:
        """Say that the rank makes no more calls. In a run, only the first departure counts.

        words: how the rank went, such as `was killed by ...`.
        """
        if self.gone is None:
            self._write(_GONE, self.run + 1, bytes([how]) + words.encode(errors=ESCAPED))

    @property
    def gone(self) -> Departure | None:
        """How the rank has gone from this run; None if it has not."""
        data = self._read(_GONE, self.run + 1)
        if not data or data[0] not in DepartureKind.__members__.values():
            return None
        return Departure(DepartureKind(data[0]), data[1:].decode(errors="replace"))

    def set_call(self, number: int, record: CallRecord) -> None:
        """Write the rank's call of this number. The board keeps two calls."""
        self._write(_CALLS[number & 1], number, record.pack(_ROOM))

    def call(self, number: int, *, or_later: bool = False) -> CallRecord | None:
        """The call of this number; None if the board does not have it. or_later: or the call that stands in its place,
        if that is a later one.
        """
        seen, data = self._latest(_CALLS[number & 1])
        try:
            return CallRecord.unpack(data) if data and (seen == number or (or_later and seen > number)) else None
        except ValueError:
            return None

    def set_gave_up(self, given_up: GivenUp) -> None:
        """Say that the rank gave up a call."""
        blames, reason = _packed(given_up.blames), given_up.reason.encode(errors=ESCAPED)
        self._write(_GAVE_UP, given_up.number, bytes([given_up.late]) + blames + reason)

    @property
    def gave_up(self) -> GivenUp:
        """The call that the rank gave up; its number is 0 if there is none."""
        number, data = self._latest(_GAVE_UP)
        if not number or len(data) <= _RANKS:
            return GivenUp()
        blames, reason = _ranks_of(data[1 : 1 + _RANKS]), data[1 + _RANKS :].decode(errors="replace")
        return GivenUp(number, bool(data[0]), blames, reason)

    def set_proposal(self, proposal: Proposal) -> None:
        """Propose which ranks a smaller group leaves out. When this returns, all ranks can see it."""
        failed, decided, ready, ballot, voted, choice, lender = proposal
        number = look(self.page, _PROPOSAL) + 1
        vote = _VOTE.pack(decided, ready, lender, ballot, voted, _packed(failed), _packed(choice))
        self._write(_PROPOSALS[number & 1], number, vote)
        publish(self.page, _PROPOSAL, number)
        fence()

    @property
    def proposal(self) -> Proposal | None:
        """The rank's latest proposal; None: it has made none yet."""
        while number := look(self.page, _PROPOSAL):
            vote = self._read(_PROPOSALS[number & 1], number)
            if look(self.page, _PROPOSAL) == number:
                if len(vote) != _VOTE.size:
                    break
                decided, ready, lender, ballot, voted, failed, choice = _VOTE.unpack(vote)
                return Proposal(_ranks_of(failed), decided, ready, ballot, voted, _ranks_of(choice), lender)
        return None

    def set_attempt(self, attempt: int, words: str = "") -> None:
        """Say that this rank makes its `shrink()` of this number, from 1 on. words: the exception that has ended it."""
        self._write(_ATTEMPT, 2 * attempt + bool(words), words.encode(errors=ESCAPED))

    @property
    def attempt(self) -> tuple[int, str]:
        """The number of the rank's last `shrink()`, 0 if there was none, and the exception that has ended it, or ""."""
        number, data = self._latest(_ATTEMPT)
        return number // 2, data.decode(errors="replace")

    def set_wait(self, wait: Wait | None) -> None:
        """Say in which call this rank of the world waits; None: in none. The rank repeats this."""
        data = b"" if wait is None else wait.pack(_ROOM)
        number, before = self._latest(_WAIT)
        if data != before:
            self._write(_WAIT, number + 1, data)
        publish(self.page, _SAID, time.monotonic_ns())

    @property
    def wait(self) -> Wait | None:
        """The call in which the rank waits. None: in no call, or it has not said so lately.

        On another host: where it waited when this copy of its board was made.
        """
        data = self._latest(_WAIT)[1]
        if time.monotonic_ns() - look(self.page, _SAID) > FRESH_NS:
            return None
        try:
            return Wait.unpack(data) if data else None
        except ValueError:
            return None

    def image(self) -> bytes:
        """The bytes of the board at one moment, without a wait that the rank has not repeated lately."""
        seen = bytes(self.page)
        order()
        while (again := bytes(self.page)) != seen:  # its owner writes just now
            seen = again
            order()
        said_ns = look(memoryview(seen), _SAID)
        last = _WAIT if time.monotonic_ns() - said_ns > FRESH_NS else BOARD_BYTES
        return b"".join((seen[:_SAID], bytes(8), seen[_SAID + 8 : last], bytes(BOARD_BYTES - last)))

    def copy(self, image: bytes, *, keep_gone: bool = False) -> None:
        """Make this copy of a board equal to the image. Only this process writes the copy.

        Only fields that differ are written, numbers last, and the proposal first: a rank may decide, and then end its
        call or go. The parent's promise is not copied: it holds on its own host only. The run is not copied either: the
        image may be older.

        image: the bytes from the board's `image`.
        keep_gone: this host knows how the rank has gone, so the departure stays.
        """
        other = Board(memoryview(image))
        for at in (_TICKS, _PID, _LET_GO):
            if (word := look(memoryview(image), at)) != look(self.page, at):
                publish(self.page, at, word)
        proposal = other.proposal
        if proposal is not None and proposal != self.proposal:
            self.set_proposal(proposal)
        for at in _COPIED if keep_gone else (*_COPIED, _GONE):
            if (latest := other._latest(at)) != self._latest(at):
                self._write(at, *latest)
        publish(self.page, _SAID, time.monotonic_ns())  # the other host has a clock of its own

    def _write(self, at: int, number: int, data: bytes) -> None:
        write_record(self.page, at, number, data[:_ROOM])

    def _read(self, at: int, number: int) -> bytes:
        seen, data = self._latest(at)
        return data if number and seen == number else b""

    def _latest(self, at: int) -> tuple[int, bytes]:
        """The number and the content of a record; 0 and nothing while the owner writes the next one there."""
        return read_record(self.page, at, _ROOM)


def _packed(ranks: Iterable[int]) -> bytes:
    """A set of ranks, a bit each."""
    return sum(1 << rank for rank in ranks).to_bytes(_RANKS, "little")


def _ranks_of(bits: bytes) -> frozenset[int]:
    """The set that `_packed` has packed."""
    number = int.from_bytes(bits, "little")
    return frozenset(rank for rank in range(number.bit_length()) if number >> rank & 1)
