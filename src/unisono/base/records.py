"""What ranks tell each other about calls that fail: a rank's call, its departure, the call that it gave up.

Code decides by the fields; `errors` makes messages of them.
"""

import json
from collections.abc import Callable, Sequence
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple

ESCAPED = "backslashreplace"
"""Error handler for surrogates, which UTF-8 cannot encode: messages of exceptions and names of files may have some."""

RAISED_AT_NS = "_unisono_raised_at_ns"
"""An attribute of an exception: when it was raised, if its rank has told the others before it ended."""

_ROOTS = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}


def digest(*parts: object) -> int:
    """64 bits of BLAKE2b over the parts; two different values have equal digests with a probability of 2^-64."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "big")


def rank_name(rank: int, world_ranks: Sequence[int], *more: str) -> str:
    """`rank 1`, or in a sub-group `rank 1 (world rank 3)`."""
    facts = [f"world rank {world_ranks[rank]}", *more] if world_ranks else more
    return f"rank {rank}" + (f" ({', '.join(facts)})" if facts else "")


def rank_names(ranks: Sequence[int], world_ranks: Sequence[int] = ()) -> str:
    """`ranks 1, 2`, or in a sub-group `ranks 1 (world rank 3), 2 (world rank 5)`."""
    names = ", ".join(rank_name(rank, world_ranks).removeprefix("rank ") for rank in ranks)
    return f"rank{'s' * (len(ranks) > 1)} {names}"


def fitting(room: int, clipped: Callable[[int], object]) -> bytes:
    """The JSON of a record in at most `room` bytes. clipped: the record with texts of at most this many characters."""
    for width in (room, 240, 120, 40, 5):
        data = json.dumps(clipped(width), ensure_ascii=False).encode(errors=ESCAPED)
        if len(data) <= room:
            break
    return data


class CallRecord(NamedTuple):
    """A call as one rank makes it.

    Attributes:
        counts: The elements of a block, or of the first blocks if they differ. None: the call exchanges sizes.
        more: The digest of all counts, if there are more.
        words: What else the ranks must agree on, such as the list of a coalesced call.
        algorithm: The table.
        lowering: How it was compiled.
        refused: Why this rank refused the call.
        where: The user's line, as file:line.
        hash: The signature, if all other fields are equal.
    """

    collective: str
    dtype: str = ""
    counts: tuple[int, ...] | None = ()
    more: str = ""
    op: str = ""
    root: int = 0
    words: str = ""
    algorithm: str = ""
    lowering: str = ""
    refused: str = ""
    where: str = ""
    hash: str = ""

    def __str__(self) -> str:
        """The call as text: `broadcast(float32[10], src=2)`."""
        if self.refused:
            return f"{self.collective}, refused there: {self.refused}"
        sizes = "sizes" if self.counts is None else ""
        if self.dtype:
            sizes = f"{self.dtype}[{' '.join(map(str, self.counts or ()))}{self.more and f' ... {self.more}'}]"
        at = f"{_ROOTS[self.collective]}={self.root}" if self.collective in _ROOTS else ""
        return f"{self.collective}({', '.join(filter(None, [sizes, at, self.op, self.words]))})"

    @property
    def text(self) -> str:
        """The call as text, with algorithm and lowering."""
        if not self.collective:
            return "another call, which is not known yet"
        told = self.hash and f"table and configuration {self.hash}"
        return ", ".join(filter(None, [str(self), self.algorithm, self.lowering, told]))

    def pack(self, room: int) -> bytes:
        """The record as at most `room` bytes. Long texts are cut at the end, `where` at the beginning."""
        return fitting(room, lambda width: self._replace(
            op=self.op[:width], words=self.words[:width], algorithm=self.algorithm[:width],
            refused=self.refused[:width], where=self.where[-width:],
        ))  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes) -> "CallRecord":
        """The record of bytes that `pack` has made. Raises ValueError for others."""
        try:
            said = json.loads(data)
            record = cls(*said)._replace(counts=None if said[2] is None else tuple(said[2]))
        except (LookupError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"invalid record of a call: {error}") from error
        kinds = {"counts": tuple | None, "root": int}
        whole = all(type(count) is int for count in record.counts or ())
        if not whole or not all(isinstance(v, kinds.get(k, str)) for k, v in record._asdict().items()):
            raise ValueError(f"invalid record of a call: {record!r:.200}")
        return record


class DepartureKind(IntEnum):
    """How a rank has left a group."""

    RETURNED = 1  # from the function that `run` called
    LEFT = 2  # by shutdown(), destroy_process_group() or the like
    RAISED = 3  # an exception ended its function or its program
    ENDED = 4  # its program ended
    DIED = 5  # its process has gone
    ABORTED = 6  # it has aborted the group


class Departure(NamedTuple):
    """How a rank has gone.

    Attributes:
        words: The end of the sentence "rank 2 ...".
    """

    how: DepartureKind
    words: str

    def __str__(self) -> str:
        return self.words

    @property
    def in_order(self) -> bool:
        """Did the rank leave after all its calls and messages?"""
        return self.how in (DepartureKind.RETURNED, DepartureKind.LEFT)


class GivenUp(NamedTuple):
    """A rank gave up its call of this number (0: none).

    late: its time was up.
    blames: if late, the ranks it waited for; otherwise ranks that have gone or have given up. Empty: the reason is the
    rank's own.
    reason: its exception as text.
    """

    number: int = 0
    late: bool = False
    blames: frozenset[int] = frozenset()
    reason: str = ""


class Proposal(NamedTuple):
    """What one rank tells while the survivors of a group agree on a smaller one; see `agreement`.

    failed: the ranks that it leaves out, as far as this rank knows.
    decided: `failed` is final.
    ready: this rank has the memory of the group without the ranks in `failed`.
    ballot: the number of the last ballot that it has begun; 0: none.
    voted: the number of the last ballot in which it has voted.
    choice: its vote there: the ranks that are left out.
    lender: the rank of its host that it waits for, to lend the memory; -1: none.
    """

    failed: frozenset[int] = frozenset()
    decided: bool = False
    ready: bool = False
    ballot: int = 0
    voted: int = 0
    choice: frozenset[int] = frozenset()
    lender: int = -1


_MOST_NAMED = 64
_STATES = {
    "R": "is running",
    "S": "sleeps, or waits for something else",
    "D": "waits for the system, such as a disk",
    "T": "is stopped by a signal, until it gets SIGCONT",
    "Z": "has ended",
    "X": "has ended",
}


class Wait(NamedTuple):
    """A call in which a rank waits, as it tells the others.

    group: the name of the group.
    call: the call in words, with the user's line.
    missing: the ranks of the world that it waits for, or the first of many.
    any_of: one of these is enough.
    """

    group: str
    call: str
    missing: tuple[int, ...]
    any_of: bool = False

    @property
    def needs(self) -> int | None:
        """A rank without which the call cannot go on; None if it is not known."""
        return None if not self.missing or (self.any_of and len(self.missing) > 1) else self.missing[0]

    def pack(self, room: int) -> bytes:
        """The wait as at most `room` bytes. Long texts are cut at the beginning, missing ranks at the end."""
        return fitting(room, lambda width: self._replace(
            group=self.group[-width:], call=self.call[-width:], missing=self.missing[: min(width, _MOST_NAMED)]
        ))  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes) -> "Wait":
        """The wait of bytes that `pack` has made. Raises ValueError for others."""
        try:
            group, call, missing, *rest = json.loads(data)
            return cls(group, call, tuple(missing), *rest)
        except (RecursionError, TypeError) as error:
            raise ValueError(f"invalid record of a wait: {error}") from error


class Sighting(NamedTuple):
    """What a missing rank does, as a rank that waits for it sees.

    rank: its number in the group of the call.
    last_call: the number of its latest call in this group.
    state, tracer: see `observe.live.ask_stacks.ProcessStatus`.
    wait: the call of any group in which it waits itself.
    line: the user's line, as file:line.
    stack: the stacks of its threads, without the frames of this package.
    silent: why there is no stack.
    """

    rank: int
    pid: int
    last_call: int = 0
    state: str = ""
    tracer: int = 0
    wait: Wait | None = None
    line: str = ""
    stack: str = ""
    silent: str = ""

    def __str__(self) -> str:
        """What the rank does: the end of the sentence "rank 2 ..."."""
        at = f" at {self.line}" if self.line else ""
        if self.state == "t":
            return f"is stopped by a debugger (process {self.tracer}){at}"
        by = f", under a debugger (process {self.tracer})" if self.tracer else ""
        if self.wait and self.state != "T":
            return f"waits in {self.wait.call} for {rank_names(self.wait.missing)}{by}"
        unseen = f"cannot be seen: {self.silent}" if self.silent and not self.state else "cannot be seen"
        return _STATES.get(self.state, unseen) + at + by
