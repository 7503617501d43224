"""The tapes of all ranks of a call over hosts, run without data: what each word holds, what each rank knows.

A word holds the contributions that have been combined in it. A rank knows which events of others came before its own,
by messages, programs and meetings. From these two follows, for every timing:

- no circle of ranks waits, whatever ranks go first;
- nobody touches memory that a carrier may write, or writes memory that a carrier may read;
- nothing is written to the user's output before the rank knows that all ranks have entered the call;
- in the end each rank's output holds what the collective promises.
"""

from collections import Counter, deque
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from tests.support.tapes import WORD, Call, RankTape, listed, words_of
from unisono.engine import tape
from unisono.engine.tape import MeetWord
from unisono.hosts.messages import TapeRow
from unisono.schedule import HOLDERS, ONE_IN, ONE_OUT, REDUCING

_TELLS, _RANK, _WORD = (word - 1 for word in (MeetWord.TELLS, MeetWord.RANK, MeetWord.WORD))

Value = tuple[Any, frozenset[int]]
"""An element, by its block and place, and the ranks whose inputs are combined."""


class Fault(Exception):
    """The tapes do not do what they must."""


class _Flight(NamedTuple):
    """A payload under way: the words that it is read from, their values, what its sender knows, and its state."""

    source: int
    words: range
    values: list[Value | None]
    knows: Counter[int]
    piece: int
    state: dict[str, Any]


class AbstractRun:
    """Runs tapes; raises Fault. random: chooses who goes next."""

    def __init__(self, call: Call, tapes: Sequence[RankTape], random: Random) -> None:
        self.call, self.tapes, self.random = call, tapes, random
        self.holds: dict[int, Value] = {}
        self.at = [0] * len(tapes)
        self.ended: set[int] = set()
        self.knows = [Counter({one.rank: 1}) for one in tapes]
        self.posted: dict[tuple[int, int, int], deque[tuple[int, TapeRow]]] = {}
        self.sent: dict[tuple[int, int, int], deque[_Flight]] = {}
        self.flights: list[list[_Flight]] = [[] for _ in tapes]
        self.told: dict[tuple[int, int], Counter[int]] = {}
        """Rank and word of its line -> what the rank knew when it came to the MEET at which it tells this."""
        self.come: dict[tuple[int, int], _Flight] = {}
        """Rank and row of a POST -> its message."""
        self.receiving: list[dict[int, int]] = [{} for _ in tapes]
        """Word that a carrier may write -> the row of its POST."""
        self.outputs = [{*one.result} for one in tapes]
        for one in tapes:
            for k, word in enumerate(one.given):
                self.holds[word] = (self._key(one.rank, k), frozenset({one.rank}))

    def _key(self, rank: int, k: int) -> Any:
        """Which element is word k of a rank's input?"""
        kind, n = self.call.table.collective, self.call.elements
        block, place = divmod(k, n) if n else (0, 0)
        if kind == "all_to_all":
            return rank, block, place
        return (rank if kind in ONE_IN else block), place

    def run(self) -> None:
        """Run all tapes to their ends, and check what they leave."""
        going = [one.rank for one in self.tapes]
        for rank in going:
            self._tell(rank)
        while going:
            able = [rank for rank in going if self.at[rank] == len(self.tapes[rank].rows) or self._can(rank)]
            if not able:
                where = {rank: self.tapes[rank].rows[self.at[rank]] for rank in going}
                raise Fault(f"all ranks wait: {where}")
            rank = self.random.choice(able)
            if self.at[rank] == len(self.tapes[rank].rows):
                if rank not in self.ended:
                    raise Fault(f"rank {rank} never ends the call")
                going.remove(rank)
                continue
            for each in self._do(rank):
                self.at[each] += 1
                self.knows[each][each] += 1
                self._tell(each)
        if any(self.posted.values()) or any(self.sent.values()):
            raise Fault("messages are left")

    def _tell(self, rank: int) -> None:
        """A rank that comes to a MEET may tell how far it is."""
        row = self._row(rank)
        if row is not None and row.kind == tape.MEET and row.words[_TELLS] >= 0:
            self.told[rank, row.words[_TELLS]] = Counter(self.knows[rank])

    def _row(self, rank: int) -> TapeRow | None:
        rows = self.tapes[rank].rows
        return rows[self.at[rank]] if self.at[rank] < len(rows) else None

    def _beside(self, rank: int) -> list[int]:
        return list(self.call.table.hosts.beside(rank))

    def _can(self, rank: int) -> bool:
        row = self._row(rank)
        assert row is not None
        if row.kind == tape.TAKE:
            return all(flight is not None for flight in self._arrivals(rank, row))
        if row.kind == tape.LEFT:
            return all("post" in flight.state for flight in self._leaving(rank, row))
        if row.kind == tape.RUN:
            return all((other := self._row(peer)) is not None and other.kind == tape.RUN for peer in self._beside(rank))
        if row.kind == tape.MEET and row.words[_RANK] >= 0:
            return (row.words[_RANK], row.words[_WORD]) in self.told
        return True

    def _do(self, rank: int) -> list[int]:
        """Do the next row of a rank; returns the ranks that have done a row."""
        row = self._row(rank)
        words = row.words
        if row.kind == tape.COPY:
            to, source = _range(words[0], words[2]), _range(words[1], words[2])
            self._read(rank, source)
            self._write(rank, to, [self.holds.get(word) for word in source])
        elif row.kind == tape.COMBINE:
            self._combine(rank, words)
        elif row.kind == tape.POST:
            self._post(rank, row)
        elif row.kind == tape.SEND:
            self._send(rank, row)
        elif row.kind == tape.TAKE:
            self._take(rank, row)
        elif row.kind == tape.LEFT:
            for flight in self._leaving(rank, row):
                flight.state["left"] = True
        elif row.kind == tape.MEET:
            if row.words[_RANK] >= 0:
                self.knows[rank] |= self.told[row.words[_RANK], row.words[_WORD]]
        elif row.kind == tape.LEAVE:
            self._leave(rank)
        else:
            return self._inside(rank)
        return [rank]

    def _combine(self, rank: int, words: Sequence[int]) -> None:
        out, first, second, count = words[:4]
        sources = [_range(first, count * WORD), *([_range(second, count * WORD)] if second else [])]
        for source in sources:
            self._read(rank, source)
        values: list[Value | None] = []
        for at in range(count):
            found = [self.holds.get(source[at]) for source in sources]
            if second:
                values.append(_joined(found))
            else:
                value = found[0]
                if value is None or len(value[1]) != len(self.tapes):
                    raise Fault(f"rank {rank} divides what is not complete")
                values.append((("average", value[0]), value[1]))
        self._write(rank, _range(out, count * WORD), values)

    def _read(self, rank: int, words: Sequence[int]) -> None:
        if not self.receiving[rank].keys().isdisjoint(words):
            raise Fault(f"rank {rank} reads what a carrier may write")

    def _write(self, rank: int, words: Sequence[int], values: Sequence[Value | None]) -> None:
        self._read(rank, words)
        new = [word for word, value in zip(words, values, strict=True) if self.holds.get(word) != value]
        self._may_write(rank, new)  # a program may copy a block to its own place
        for word, value in zip(words, values, strict=True):
            self.holds.pop(word, None)
            if value is not None:
                self.holds[word] = value

    def _may_write(self, rank: int, words: Sequence[int]) -> None:
        if not self.outputs[rank].isdisjoint(words) and not self._knows_all(rank):
            raise Fault(f"rank {rank} writes the output before it knows that all ranks have entered the call")
        for flight in self.flights[rank]:
            if not self._has_left(rank, flight) and not {*flight.words}.isdisjoint(words):
                raise Fault(f"rank {rank} writes what a carrier may read")

    def _knows_all(self, rank: int) -> bool:
        return len(self.knows[rank]) == len(self.tapes)

    def _has_left(self, rank: int, flight: _Flight) -> bool:
        """Does the rank know that nobody reads the words any more?"""
        by, event = flight.state.get("taken", (0, 1 << 60))
        return "left" in flight.state or self.knows[rank][by] >= event

    def _post(self, rank: int, row: TapeRow) -> None:
        place = _range(row.words[1], row.words[2])
        self._read(rank, place)
        self._may_write(rank, place)
        self.receiving[rank] |= dict.fromkeys(place, self.at[rank])
        key = row.peer, rank, row.tag_of(1) if row.tag < 0 else row.tag
        self.posted.setdefault(key, deque()).append((self.at[rank], row))
        self._meet_messages(key)

    def _send(self, rank: int, row: TapeRow) -> None:
        place = _range(row.words[1], row.words[2])
        self._read(rank, place)
        values: list[Value | None] = [self.holds.get(word) for word in place]
        if row.words[0]:
            values[-1] = None  # the number of the call
        flight = _Flight(rank, place, values, Counter(self.knows[rank]), row.piece, {})
        flight.state["straight"] = row.wire.straight
        self.flights[rank].append(flight)
        key = rank, row.peer, row.tag_of(1) if row.tag < 0 else row.tag
        self.sent.setdefault(key, deque()).append(flight)
        self._meet_messages(key)

    def _meet_messages(self, key: tuple[int, int, int]) -> None:
        """The first message of a tag meets the first receive."""
        posted, sent = self.posted.get(key), self.sent.get(key)
        while posted and sent:
            (at, row), flight = posted.popleft(), sent.popleft()
            if row.words[2] != len(flight.words) * WORD:
                raise Fault("a message has another size than its receive")
            flight.state["post"] = at
            self.come[key[1], at] = flight

    def _posts(self, rank: int, row: TapeRow) -> list[int]:
        rows = self.tapes[rank].rows
        return [at for at, each in enumerate(rows) if each.kind == tape.POST and each.wire is row.wire]

    def _arrivals(self, rank: int, row: TapeRow) -> list[_Flight | None]:
        return [self.come.get((rank, at)) for at in self._posts(rank, row)] or [None]

    def _take(self, rank: int, row: TapeRow) -> None:
        for at, flight in zip(self._posts(rank, row), self._arrivals(rank, row), strict=True):
            assert flight is not None
            place = _range(*self.tapes[rank].rows[at].words[1:3])
            for word in place:
                del self.receiving[rank][word]
            for word, value in zip(place, flight.values, strict=True):
                self.holds.pop(word, None)
                if value is not None:
                    self.holds[word] = value
            self.knows[rank] |= flight.knows
            flight.state["taken"] = rank, self.knows[rank][rank] + 1

    def _leaving(self, rank: int, row: TapeRow) -> list[_Flight]:
        piece = row.words[0]
        return [each for each in self.flights[rank] if each.state["straight"] and piece in (-1, each.piece)]

    def _inside(self, rank: int) -> list[int]:
        """A program of the ranks of a host: from what they hold now follows what they hold then."""
        here = self._beside(rank)
        requests = []
        for peer in here:
            row = self._row(peer)
            requests.append(self.tapes[peer].insides[row.words[0]])
        first = requests[0]
        if any(
            (each.collective, each.root, each.extents) != (first.collective, first.root, first.extents)
            for each in requests
        ):
            raise Fault("ranks of a host make different programs")
        kind, before = first.collective, [Counter(self.knows[peer]) for peer in here]
        given = [self._blocks(peer, each.inp) for peer, each in zip(here, requests, strict=True)]
        for seat, (peer, each) in enumerate(zip(here, requests, strict=True)):
            for block, words in enumerate(_words(each.out)):
                values, sources = _program(kind, first.root, given, seat, block)
                if kind != "broadcast" or seat != first.root:
                    for source in sources:
                        self.knows[peer] |= before[source]
                    self._write(peer, words, values)
        return here

    def _blocks(self, rank: int, tensors: Any) -> list[list[Value | None]]:
        blocks = _words(tensors)
        for words in blocks:
            self._read(rank, words)
        return [[self.holds.get(word) for word in words] for words in blocks]

    def _leave(self, rank: int) -> None:
        one = self.tapes[rank]
        self.ended.add(rank)
        if not one.result and not one.given and self.call.table.collective != "barrier":
            return
        if not self._knows_all(rank) and (one.result or self.call.table.collective == "barrier"):
            raise Fault(f"rank {rank} ends, and does not know that all ranks have entered the call")
        user = {*one.given, *one.result}
        if any(not self._has_left(rank, each) and not user.isdisjoint(each.words) for each in self.flights[rank]):
            raise Fault(f"rank {rank} ends, and its tensors are still sent")
        for k, word in enumerate(one.result):
            if self.holds.get(word) != self._wanted(rank, k):
                raise Fault(f"rank {rank}, word {k}: {self.holds.get(word)}, not {self._wanted(rank, k)}")

    def _wanted(self, rank: int, k: int) -> Value:
        call, kind, size = self.call, self.call.table.collective, len(self.tapes)
        block, place = divmod(k, call.elements)
        if kind == "all_to_all":
            return (block, rank, place), frozenset({block})
        block = rank if kind in ONE_OUT else block
        key: Any = (block, place)
        if kind in REDUCING:
            return (("average", key) if call.op == "avg" else key), frozenset(range(size))
        return key, frozenset({block if kind in ONE_IN else call.table.root})


def _words(tensors: Any) -> list[list[int]]:
    return [] if tensors is None else [words_of(each) for each in listed(tensors)]


def _program(
    kind: str, root: int, given: list[list[list[Value | None]]], seat: int, block: int
) -> tuple[list[Value | None], list[int]]:
    """What a block of a rank's output holds after a program, and the seats from which it comes."""
    everybody = list(range(len(given)))
    if kind == "all_to_all":
        return given[block][seat], [block]
    before, after = HOLDERS[kind]
    block = seat if after == "owner" else block
    if before == "all":
        return [_joined(list(values)) for values in zip(*(one[block] for one in given), strict=True)], everybody
    source = root if before == "root" else block
    return given[source][block if before == "root" and after == "owner" else 0], [source]


def _joined(values: Sequence[Value | None]) -> Value:
    """The combination of some values."""
    known = [value for value in values if value is not None]
    keys, ranks = {key for key, _ in known}, [rank for _, some in known for rank in some]
    if len(known) != len(values) or len(keys) != 1 or len({*ranks}) != len(ranks):
        raise Fault(f"{values} are combined")
    return keys.pop(), frozenset(ranks)


def _range(start: int, nbytes: int) -> range:
    return range(start, start + nbytes, WORD)
