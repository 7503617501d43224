"""Two pages per rank, which its peers read: process id, departure, latest calls, what it gave up, its proposal.

Only slow paths use boards. A field is a number, a length, and a record as bytes. The number is written last, so a
reader that sees the number sees the bytes, see `engine.memory_order`. A proposal changes: it has two places, which take
turns, and a number that says which one counts. Bytes that are no record count as not written.

A departure has the number of its run. Processes stay from one run to the next, so another host's copy of a departure
may come late, when the next run has begun. Each host knows the number of the present run.

The board of a rank of a world also says whether the process answers with its stacks, and in which call the rank waits.
A rank that waits says so again and again: a rank that was stopped in a call may have nothing to wait for any more.
"""

import time
from collections.abc import Iterable, Sequence

from ...base.records import ESCAPED, CallRecord, Departure, DepartureKind, GivenUp, Proposal, Wait
from ..memory_order import fence, look, order, publish, read_record, write_record

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
SENTINEL_ENDED = 0x40000000 << 32
"""FUTEX_OWNER_DIED, of linux/futex.h, in the upper half of the count of urgent news."""
_PID, _LET_GO, _TICKS, _RUN, _PARENT_TELLS, _STACKS = range(0, 48, 8)
_GONE, _CALLS, _GAVE_UP = 64, (1088, 2112), 3136
_HEAD = 16  # bytes of a record's number and length
_ROOM = PAGE - _GAVE_UP - _HEAD
_RANKS = MAX_RANKS // 8
_MOST_PID = (1 << 31) - 1
_PROPOSAL, _PROPOSAL_BYTES = PAGE, 576
_INTERRUPTED = _PROPOSAL + _PROPOSAL_BYTES
_SAID, _WAIT = _INTERRUPTED + 1024, _INTERRUPTED + 1024 + 64
_COPIED = (_WAIT, _INTERRUPTED, _GAVE_UP, *_CALLS)
_SET_WORDS = MAX_RANKS // 64
_PLACE_WORDS = 3 + 2 * _SET_WORDS
_DECIDED, _READY, _LENDER = 1, 2, 2  # bits, and by how many bits a lender's number is shifted
_WORD = (1 << 64) - 1


def whole_pages(nbytes: int) -> int:
    """Round up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


def first_board(start: int, size: int) -> int:
    """Where the boards of a group of `size` ranks begin, whose memory begins at `start`: behind its control lines."""
    return start + whole_pages(size * LINE)


class Board:
    """The board of one rank. The owner writes it, its peers read it."""

    def __init__(self, page: memoryview) -> None:
        self._page = page

    @property
    def pid(self) -> int:
        """The process id of the rank; 0 before the rank has joined."""
        pid = look(self._page, _PID)
        return pid if pid <= _MOST_PID else 0

    @property
    def ticks(self) -> int:
        """When the process started: see `engine.process.alive.start_ticks`."""
        return look(self._page, _TICKS)

    def set_process(self, pid: int, ticks: int) -> None:
        """Write the process id and start of the rank."""
        publish(self._page, _TICKS, ticks)
        publish(self._page, _PID, pid)

    @property
    def parent_tells_end(self) -> bool:
        """Will the rank's parent write here how the rank has gone, if the rank cannot?"""
        return bool(look(self._page, _PARENT_TELLS))

    def set_parent_tells_end(self) -> None:
        """The parent promises to write here how the rank has gone, if the rank cannot."""
        publish(self._page, _PARENT_TELLS, 1)

    @property
    def stacks(self) -> int:
        """Where the process writes its stacks, see `engine.process.stacks.answer_with_stacks`; 0: nowhere."""
        return look(self._page, _STACKS)

    def set_stacks(self, number: int) -> None:
        """Say where this process writes its stacks."""
        publish(self._page, _STACKS, number)

    @property
    def let_go(self) -> bool:
        """Has this rank, after leaving a sub-group, dropped everything that its peers could reach?"""
        return bool(look(self._page, _LET_GO))

    def set_let_go(self) -> None:
        """Say that this rank has dropped everything that its peers could reach."""
        publish(self._page, _LET_GO, 1)

    @property
    def run(self) -> int:
        """The number of the run in which the rank takes part; 0 without runs."""
        return look(self._page, _RUN)

    def begin_run(self, number: int) -> None:
        """From now on the rank takes part in the run of this number. Departures from other runs do not count.

        A run begins on all hosts, also on their copies of this board, before a rank hears of it.
        """
        publish(self._page, _RUN, number)

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
        blames = sum(1 << rank for rank in given_up.blames).to_bytes(_RANKS, "little")
        self._write(_GAVE_UP, given_up.number, bytes([given_up.late]) + blames + given_up.reason.encode(errors=ESCAPED))

    @property
    def gave_up(self) -> GivenUp:
        """The call that the rank gave up; its number is 0 if there is none."""
        number, data = self._latest(_GAVE_UP)
        if not number or len(data) <= _RANKS:
            return GivenUp()
        bits = int.from_bytes(data[1 : 1 + _RANKS], "little")
        blames = frozenset(rank for rank in range(MAX_RANKS) if bits >> rank & 1)
        return GivenUp(number, bool(data[0]), blames, data[1 + _RANKS :].decode(errors="replace"))

    def set_proposal(self, proposal: Proposal) -> None:
        """Propose which ranks a smaller group leaves out. When this returns, all ranks can see it."""
        words = self._proposal_words()
        at = 1 + (words[0] & 1 ^ 1) * _PLACE_WORDS  # of two places, the one that is not read now
        flags = proposal.decided * _DECIDED | proposal.ready * _READY | proposal.lender + 1 << _LENDER
        said = flags, proposal.ballot, proposal.voted, *_words_of(proposal.failed), *_words_of(proposal.choice)
        for k, word in enumerate(said):
            words[at + k] = word
        publish(self._page, _PROPOSAL, words[0] + 1)
        fence()

    @property
    def proposal(self) -> Proposal | None:
        """The rank's latest proposal; None: it has made none yet."""
        words = self._proposal_words()
        while version := look(self._page, _PROPOSAL):
            at = 1 + (version & 1) * _PLACE_WORDS
            flags, ballot, voted, *sets = words[at : at + _PLACE_WORDS].tolist()
            order()
            if words[0] == version:
                failed, choice = _ranks_of(sets[:_SET_WORDS]), _ranks_of(sets[_SET_WORDS:])
                decided, ready, lender = bool(flags & _DECIDED), bool(flags & _READY), (flags >> _LENDER) - 1
                return Proposal(failed, decided, ready, ballot, voted, choice, lender)
        return None

    def set_interrupted(self, words: str) -> None:
        """Say which exception has ended this rank's `shrink()`; no words: it makes that call again."""
        if words or self.interrupted[1]:
            self._write(_INTERRUPTED, self._latest(_INTERRUPTED)[0] + 1, words.encode(errors=ESCAPED))

    @property
    def interrupted(self) -> tuple[int, str]:
        """A number that each exception has for itself, and the exception that has ended this rank's `shrink()`.

        No words: there was none, or the rank calls `shrink()` again.
        """
        number, data = self._latest(_INTERRUPTED)
        return number, data.decode(errors="replace")

    def set_wait(self, wait: Wait | None) -> None:
        """Say in which call this rank of the world waits; None: in none. The rank repeats this."""
        data = b"" if wait is None else wait.pack(_ROOM)
        number, before = self._latest(_WAIT)
        if data != before:
            self._write(_WAIT, number + 1, data)
        publish(self._page, _SAID, time.monotonic_ns())

    @property
    def wait(self) -> Wait | None:
        """The call in which the rank waits. None: in no call, or it has not said so lately.

        On another host: where it waited when this copy of its board was made.
        """
        data = self._latest(_WAIT)[1]
        if time.monotonic_ns() - look(self._page, _SAID) > FRESH_NS:
            return None
        try:
            return Wait.unpack(data) if data else None
        except ValueError:
            return None

    def image(self) -> bytes:
        """The bytes of the board at one moment, without a wait that the rank has not repeated lately."""
        seen = bytes(self._page)
        order()
        while (again := bytes(self._page)) != seen:  # its owner writes just now
            seen = again
            order()
        said_ns = look(memoryview(seen), _SAID)
        last = _WAIT if time.monotonic_ns() - said_ns > FRESH_NS else _WAIT + _HEAD + _ROOM
        return b"".join((seen[:_SAID], bytes(_WAIT - _SAID), seen[_WAIT:last], bytes(BOARD_BYTES - last)))

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
            if (word := look(memoryview(image), at)) != look(self._page, at):
                publish(self._page, at, word)
        proposal = other.proposal
        if proposal is not None and proposal != self.proposal:
            self.set_proposal(proposal)
        for at in _COPIED if keep_gone else (*_COPIED, _GONE):
            if (latest := other._latest(at)) != self._latest(at):
                self._write(at, *latest)
        publish(self._page, _SAID, time.monotonic_ns())  # the other host has a clock of its own

    def _proposal_words(self) -> memoryview:
        return self._page[_PROPOSAL : _PROPOSAL + _PROPOSAL_BYTES].cast("Q")

    def _write(self, at: int, number: int, data: bytes) -> None:
        data = data[:_ROOM]
        write_record(self._page, at, number, len(data).to_bytes(8, "little") + data)

    def _read(self, at: int, number: int) -> bytes:
        seen, data = self._latest(at)
        return data if number and seen == number else b""

    def _latest(self, at: int) -> tuple[int, bytes]:
        """The number and the bytes of a record at one moment: the owner may write the next record meanwhile. While it
        does, the number is 0, and there are no bytes.
        """
        number, data = read_record(self._page, at, 8 + _ROOM)
        length = int.from_bytes(data[:8], "little")
        return number, data[8 : 8 + length] if number and length <= _ROOM else b""


def _words_of(ranks: Iterable[int]) -> list[int]:
    bits = sum(1 << rank for rank in ranks)
    return [bits >> 64 * k & _WORD for k in range(_SET_WORDS)]


def _ranks_of(words: Sequence[int]) -> frozenset[int]:
    bits = sum(word << 64 * k for k, word in enumerate(words))
    return frozenset(rank for rank in range(bits.bit_length()) if bits >> rank & 1)
