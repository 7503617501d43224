"""First pass: the table in single assignment form.

Each write of a slot makes a new version, which has one maker and a list of readers. All that a round combines into a
slot is one move with its inputs in rank order, so sums have the same bits however the tensor is cut. Moves that no
result needs are dropped.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...base.errors import AlgorithmError
from ...schedule.contract import BLOCKED, Contract, Slot, contract, slot_text
from ...schedule.moves import moves
from ...schedule.table import Schedule
from .program import IN, OUT


class Place(NamedTuple):
    """A ref: where (IN, OUT or STAGE), the rank, the block or staging slot, the chunk of the block."""

    where: int
    rank: int
    block: int
    sub: int


@dataclass(slots=True, eq=False)
class Version:
    """The content of a slot between two writes.

    contributions: the ranks whose inputs it combines, as bits.
    given: its place in the user's input, or None.
    result: its place in the user's output, or None.
    count_index: which of the counts of blocks is its own.
    home: where its own rank reads it.
    abroad: where peers read it.
    """

    rank: int
    sub: int
    maker: "ProgramMove | None"
    contributions: int
    count_index: int = 0
    given: Place | None = None
    result: Place | None = None
    home: Place | None = None
    abroad: Place | None = None
    readers: "list[ProgramMove]" = field(default_factory=list)

    def peers(self) -> "list[ProgramMove]":
        """The moves that read this version in staging: those of other ranks, and messages."""
        return [m for m in self.readers if m.rank != self.rank or m.sends]


_NO_CLOCK = np.zeros(0, np.uint16)


class Message:
    """A message between hosts.

    send: the move by which it leaves.
    is_empty: it has no bytes, and only tells that ranks have entered the call: see `far.barrier`.
    """

    send: "ProgramMove"

    def __init__(self, number: int, src: int, dst: int, is_empty: bool = False) -> None:
        self.number, self.src, self.dst, self.is_empty = number, src, dst, is_empty


@dataclass(slots=True, eq=False)
class ProgramMove:
    """One step of a rank: copy or combine `inputs` into all places of `to`.

    A move that publishes an input, that is copies it to the staging area, for other ranks to read, makes no version.

    message: this move is one end of it; the end that leaves has an input, the end that comes makes a version.
    clock: the steps of all ranks that this rank has surely seen when the move has been made.
    entered: the ranks that have surely entered the call then, as bits.
    """

    rank: int
    round: float
    sub: int
    inputs: list[Version]
    count_index: int = 0
    makes: Version | None = None
    step: int = 0
    last: bool = False
    source: list[Place] = field(default_factory=list)
    to: list[Place] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    clock: np.ndarray = field(default_factory=lambda: _NO_CLOCK)
    message: Message | None = None
    entered: int = 0

    @property
    def sends(self) -> bool:
        """Is it the end of a message that leaves?"""
        return self.message is not None and self.message.src == self.rank


class Versions(NamedTuple):
    """The moves in order of rounds, and the versions that are results."""

    moves: list[ProgramMove]
    finals: list[Version]
    contract: Contract


def make_versions(schedule: Schedule) -> Versions:
    """The table in single assignment form. Raises AlgorithmError if a chunk ends at another place within a block."""
    promise = contract(schedule)
    per, everybody = promise.per_block, (1 << schedule.ranks) - 1
    given, result = _places(promise.before, IN, per), _places(promise.after, OUT, per)
    now: dict[Slot, Version] = {}
    made: list[ProgramMove] = []

    def read(slot: Slot) -> Version:
        if slot not in now:
            if slot not in given:
                raise AlgorithmError(f"{schedule.name}: reads {slot_text(slot)}, which holds nothing")
            place = given[slot]
            index = count_index(schedule, place.rank, promise.before[slot][0] // per)
            now[slot] = Version(slot[0], slot[2] % per, None, 1 << slot[0], index, given=place)
        return now[slot]

    for k, round_ in moves(schedule):
        terms = {}
        for slot, sources in round_:
            terms[slot] = [read(source) for source in sources]
        for slot, inputs in terms.items():
            sub, index = inputs[0].sub, inputs[0].count_index
            if any((version.sub, version.count_index) != (sub, index) for version in inputs):
                raise AlgorithmError(f"{schedule.name}, round {k}: combines chunks whose sizes may differ")
            move = ProgramMove(slot[0], k, sub, inputs, index)
            union = 0
            for version in inputs:
                union |= version.contributions
            move.makes = now[slot] = Version(slot[0], move.sub, move, union, index)
            move.last = union == everybody
            made.append(move)
    finals = []
    for slot, place in result.items():
        version = read(slot)
        if version.sub != place.sub:
            reason = f"chunk {version.sub} of a block ends as chunk {place.sub}: their sizes may differ"
            raise AlgorithmError(f"{schedule.name}: {reason}")
        version.result = place
        finals.append(version)
    return Versions(_needed(made, finals), finals, promise)


def count_index(schedule: Schedule, rank: int, block: int) -> int:
    """The index of the count of a rank's block: one per block, in all_to_all one per pair of ranks."""
    if schedule.collective == "all_to_all":
        return rank * schedule.ranks + block
    return block if schedule.collective in BLOCKED else 0


def _places(slots: dict[Slot, tuple[int, int]], where: int, per: int) -> dict[Slot, Place]:
    """The places of slots in the users' tensors: a rank's tensor has the slots of the rank in order."""
    count: dict[int, int] = {}
    places = {}
    for slot in sorted(slots):
        index = count.get(slot[0], 0)
        count[slot[0]] = index + 1
        places[slot] = Place(where, slot[0], index // per, index % per)
    return places


def _needed(moves: list[ProgramMove], finals: list[Version]) -> list[ProgramMove]:
    """The moves that a result depends on. Adds them to the readers of their inputs."""
    live, keep = set(finals), []
    for move in reversed(moves):
        if move.makes in live:
            live.update(move.inputs)
            keep.append(move)
    keep.reverse()
    for move in keep:
        for version in move.inputs:
            version.readers.append(move)
    return keep
