"""Compile a table to one program per rank.

The passes are `versions` (what each move reads and makes), `place` (where each version lies) and `_Order` (what each
rank does one after the other, and for what it waits); `compile_schedule` writes the rows. `interpret` runs them.
`program_proof` proves them independently.
"""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from ...base.errors import AlgorithmError
from ...schedule.hosts import Hosts
from ...schedule.table import Schedule
from . import far
from .program import IN, OUT, ROW_WORDS, STAGE, STEP_BITS, Lowering, Op, Program
from .versions import Message, Place, ProgramMove, Version, Versions, make_versions

_NEVER = float("inf")
_COPIED = -(2**-22)
"""Where inputs are copied to outputs among the rounds: before all moves, behind empty messages (see `far`)."""


class Placed(NamedTuple):
    """The moves before the gate, those after it in order, and the number of staging slots of each rank."""

    before_gate: list[ProgramMove]
    after_gate: list[ProgramMove]
    slots: list[int]


def memory(place: Place, lowering: Lowering) -> Place:
    """The memory of a place: with in-place lowering, the output is the input."""
    return place._replace(where=IN) if lowering.in_place and place.where == OUT else place


def place(versions: Versions, ranks: int, lowering: Lowering) -> Placed:
    """Second pass: set the places of every version, and add the moves that publish inputs and copy them to outputs.

    - A version lies in a user's tensor if it is the input or the result, otherwise in staging.
    - Peers read it in the owner's staging area (staged lowering), or in the tensor (zero copy) unless a move overwrites
      it while they may still read it.
    - An input that peers read from staging is published there once; before the gate if the first round needs it.
    """
    slots = [0] * ranks

    def stage(version: Version) -> Place:
        slots[version.rank] += 1
        return Place(STAGE, version.rank, slots[version.rank] - 1, version.sub)

    overwritten: dict[Place, ProgramMove] = {}
    for move in versions.moves:
        if move.makes and move.makes.result:
            overwritten[memory(move.makes.result, lowering)] = move
    publish: list[ProgramMove] = []
    for version in _each(versions):
        peers = version.peers()
        if version.given:
            version.home = version.abroad = version.given
            writer = overwritten.get(version.given)
            until = writer.round if writer else _NEVER
            # A move of the owner may overwrite what it reads itself, but not what a later move of the owner reads.
            kept = all(m is writer or m.round < until for m in version.readers if m not in peers)
            reached = lowering.zero_copy and all(m.round < until for m in peers)
            if (peers and not reached) or not kept:
                staged = stage(version)
                publish.append(_copy(version, min(m.round for m in version.readers) - 0.5, staged))
                version.abroad = staged
                if not kept:
                    version.home = staged
        elif version.maker:
            if version.result:
                version.maker.to.append(version.result)
            if not version.result or (peers and not lowering.zero_copy):
                version.maker.to.append(stage(version))
            version.home = version.maker.to[0]
            version.abroad = version.home if lowering.zero_copy else version.maker.to[-1]
    copies = [
        _copy(version, _COPIED, version.result)
        for version in versions.finals
        if version.given and version.result and memory(version.result, lowering) != version.given
    ]
    before = [m for m in publish if m.round < 0]
    after = sorted([*(m for m in publish if m.round >= 0), *copies, *versions.moves], key=lambda m: m.round)
    return Placed(before, after, slots)


def _each(versions: Versions) -> list[Version]:
    seen: dict[Version, None] = {}
    for move in versions.moves:
        seen.update(dict.fromkeys(move.inputs))
        if move.makes:
            seen[move.makes] = None
    return list(seen)


def _copy(version: Version, at: float, to: Place) -> ProgramMove:
    """A copy of an input to a place; it makes no version."""
    source = [version.given] if version.given else []
    return ProgramMove(version.rank, at, version.sub, [], version.count_index, source=source, to=[to])


class _Order:
    """Third and fourth pass: each rank's moves before the gate and after it, with their waits; and the gate's step.

    Steps count the moves of a rank. The gate posts all moves before it, as the same step on all ranks.

    Put: a copy of a peer's combined value becomes one more output of the move that combines it, if vector clocks prove
    that no other move can be using the destination. So two-shot and ring reduce and distribute in one pass.

    Waits: a move waits for the makers of its inputs and, with zero copy, for the last users of what it overwrites. A
    wait that an earlier one implies is left out.
    """

    def __init__(self, name: str, placed: Placed, ranks: int, lowering: Lowering, hosts: Hosts) -> None:
        self.name, self.ranks, self.lowering, self.hosts = name, ranks, lowering, hosts
        self.before: list[list[ProgramMove]] = [[] for _ in range(ranks)]
        self.after: list[list[ProgramMove]] = [[] for _ in range(ranks)]
        for move in placed.before_gate:
            self.before[move.rank].append(move)
        self.gate = 1 + max(map(len, self.before))
        self.check_steps(self.gate)
        self.clock = np.zeros((ranks, ranks), np.uint16)  # no step is larger, and there is a copy for each move
        np.fill_diagonal(self.clock, self.gate)
        for moves, clock in zip(self.before, self.clock.copy(), strict=True):
            for move in moves:
                move.step, move.clock = self.gate, clock
        self.publisher = {move.to[0]: move for moves in self.before for move in moves}  # staging slot -> who fills it
        self.users: dict[Place, list[ProgramMove]] = defaultdict(list)  # the moves that access a user's memory
        self.entered = [sum(1 << peer for peer in hosts.beside(rank)) for rank in range(ranks)]
        """For each rank the ranks that have surely entered the call, as bits."""
        self.everybody = (1 << ranks) - 1
        self.barrier_ends: dict[int, ProgramMove] = {}
        """Host -> the last move of the barrier between hosts, if there is one; its other ranks must wait for it."""
        self.needs_barrier = False
        """May a rank otherwise write its output, or end the call, before all ranks have entered it?"""
        for move in placed.before_gate:
            self.use(move)
        for move in placed.after_gate:
            self.add(move)
        for rank in range(ranks) if lowering.zero_copy or self.barrier_ends else ():
            self.leave(rank)
        for rank, moves in enumerate(self.after):
            writes = [move.entered for move in moves if any(place.where != STAGE for place in move.to)]
            self.needs_barrier |= any(entered != self.everybody for entered in [self.entered[rank], *writes])

    def add(self, move: ProgramMove) -> None:
        if self.put(move):
            return
        needs: list[ProgramMove] = []
        for version in move.inputs:
            place = version.home if version.rank == move.rank and not move.sends else version.abroad
            if place is None:
                continue
            move.source.append(place)
            if version.maker:
                needs.append(version.maker)
            elif place in self.publisher:
                needs.append(self.publisher[place])
        if self.lowering.zero_copy:
            needs += [user for place in move.to if place.where != STAGE for user in self.users_of(place)]
        if any(place.where != STAGE for place in move.to):
            needs += self.barrier(move.rank)
        self.wait(move, needs)
        if move.message is not None and not move.sends:
            self.take(move, move.message)
        moves = self.after[move.rank]
        moves.append(move)
        move.step, move.entered = self.gate + len(moves), self.entered[move.rank]
        self.check_steps(move.step)
        self.clock[move.rank][move.rank] = move.step
        move.clock = self.clock[move.rank].copy()
        if move.to and move.to[0].where == STAGE and move.makes is None:
            self.publisher[move.to[0]] = move
        self.use(move)

    def take(self, move: ProgramMove, message: Message) -> None:
        """What its sender knows, this rank knows when it has taken a message. An empty one is sent in one segment
        only, so it orders no steps.
        """
        self.entered[move.rank] |= message.send.entered
        if message.is_empty:
            self.barrier_ends[self.hosts.host_of(move.rank)] = move
        else:
            mine = self.clock[move.rank]
            np.maximum(mine, message.send.clock, out=mine)

    def barrier(self, rank: int) -> list[ProgramMove]:
        """The move of a barrier between hosts that tells a rank what it does not know yet."""
        end = self.barrier_ends.get(self.hosts.host_of(rank))
        return [] if end is None or self.entered[rank] == self.everybody else [end]

    def use(self, move: ProgramMove) -> None:
        for place in [*move.source, *move.to]:
            if place.where != STAGE:
                self.users_of(place).append(move)

    def put(self, move: ProgramMove) -> bool:
        """Make this copy an output of the move that makes its input, if the destination is free by then."""
        maker = move.inputs[0].maker if len(move.inputs) == 1 else None
        if not (self.lowering.zero_copy and maker and len(maker.inputs) > 1 and move.makes):
            return False
        if len(move.to) != 1 or move.to[0].where != OUT or any(m.round <= move.round for m in move.makes.readers):
            return False
        users = self.users_of(move.to[0])
        if not all(user is maker or user.step <= maker.clock[user.rank] for user in users):
            return False
        maker.to.append(move.to[0])
        users.append(maker)
        move.makes.maker = maker
        return True

    def leave(self, rank: int) -> None:
        """Add a last wait: a rank returns when no peer uses its tensors any more."""
        last = ProgramMove(rank, float("inf"), 0, [])
        users = [m for place, users in self.users.items() if place.rank == rank for m in users]
        self.wait(last, [*(users if self.lowering.zero_copy else ()), *self.barrier(rank)])
        if last.waits:
            last.step, last.entered = self.gate + len(self.after[rank]) + 1, self.entered[rank]
            self.check_steps(last.step)
            self.after[rank].append(last)

    def wait(self, move: ProgramMove, needs: list[ProgramMove]) -> None:
        """Add waits for these moves, the latest first, because it implies the most."""
        mine = self.clock[move.rank]
        for need in sorted(needs, key=lambda m: (-m.round, -m.step, (m.rank - move.rank) % self.ranks)):
            if need.rank != move.rank and mine[need.rank] < need.step:
                move.waits.append((need.rank, need.step))
                np.maximum(mine, need.clock, out=mine)
                self.entered[move.rank] |= need.entered

    def users_of(self, place: Place) -> list[ProgramMove]:
        return self.users[memory(place, self.lowering)]

    def check_steps(self, step: int) -> None:
        """Raise AlgorithmError if a rank makes more steps than a progress word can count."""
        if step >= 1 << STEP_BITS:
            raise AlgorithmError(
                f"{self.name}: a rank makes too many moves, expected at most {1 << STEP_BITS}. Use fewer chunks or "
                "rounds."
            )


def compile_schedule(schedule: Schedule, lowering: Lowering) -> list[Program]:
    """The programs of all ranks, which are on the table's hosts.

    Raises AlgorithmError for a table that has no program.
    """
    ranks, hosts = schedule.ranks, schedule.hosts or Hosts.one(schedule.ranks)
    versions, placed, made = _order(schedule, lowering, hosts, barrier=False)
    if made.needs_barrier:
        versions, placed, made = _order(schedule, lowering, hosts, barrier=True)
    if made.needs_barrier:
        raise AlgorithmError(
            f"{schedule.name}: a rank writes its output before all hosts have entered the call. Move such a transfer "
            "to a later round."
        )
    before, after, gate = made.before, made.after, made.gate
    waited = {wait for moves in after for move in moves for wait in move.waits}
    readers: list[set[int]] = [set() for _ in range(ranks)]
    for moves in after:
        for move in moves:
            for source in move.source:
                if source.where == STAGE and source.rank != move.rank:
                    readers[source.rank].add(move.rank)
    one_post = not any(step > gate for _, step in waited) and not lowering.zero_copy and not hosts.spans
    one_way = any(readers) and not all(readers)
    programs = []
    for rank in range(ranks):
        flags = np.zeros(ranks, np.int64)
        flags[list(readers[rank])] = 1
        here = sum(1 << peer for peer in hosts.beside(rank))
        rows, refs, gate_row = _encode(rank, before[rank], after[rank], gate, waited, here)
        programs.append(
            Program(
                schedule.name, schedule.digest, lowering, ranks, rows, refs, frozenset(readers[rank]), flags,
                max(placed.slots), gate, versions.contract.blocks, versions.contract.per_block, one_post, one_way,
                gate_row, hosts.spans,
            )
        )  # fmt: skip
    return programs


def _order(schedule: Schedule, lowering: Lowering, hosts: Hosts, *, barrier: bool) -> tuple[Versions, Placed, _Order]:
    """The passes before the rows are written. barrier: add one between hosts."""
    versions = make_versions(schedule)
    if hosts.spans:
        versions = far.messages(versions, hosts)
    placed = place(versions, schedule.ranks, lowering)
    if barrier:
        placed = placed._replace(after_gate=far.barrier(placed.after_gate, hosts))
    return versions, placed, _Order(schedule.name, placed, schedule.ranks, lowering, hosts)


def _encode(
    rank: int, before: list[ProgramMove], after: list[ProgramMove], gate: int, waited: set[tuple[int, int]], here: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """The rows and refs of a rank, and the row after which all ranks have entered the call. here: the ranks of its
    host, as bits.
    """
    rows: list[list[int]] = []
    refs: list[tuple[int, ...]] = []

    def post(step: int) -> int:
        return step if (rank, step) in waited else 0

    def add(move: ProgramMove, step: int) -> None:
        first = len(refs)
        refs.extend([*move.source, *move.to])
        rows.append(
            [Op.MOVE, move.sub, len(move.source), first, len(move.to), post(step), int(move.last), move.count_index]
        )

    for move in before:
        add(move, 0)
    rows.append([Op.GATE, 0, 0, 0, 0, post(gate), 0, 0])
    gate_row, entered = len(rows) - 1, here
    for move in after:
        rows.extend([Op.WAIT, peer, step, 0, 0, 0, 0, 0] for peer, step in move.waits)
        message = move.message
        if message is not None:
            op, peer = (Op.SEND, message.dst) if move.sends else (Op.RECV, message.src)
            slot = next((place.block for place in [*move.source, *move.to]), 0)
            row = [op, move.sub, peer, slot, message.number, post(move.step), int(message.is_empty), move.count_index]
            rows.append(row)
        if move.entered & ~entered and (message is not None or move.waits):
            gate_row, entered = len(rows) - 1, entered | move.entered
        if message is None and (move.source or post(move.step)):
            add(move, move.step)
    return np.array(rows, np.int64).reshape(-1, ROW_WORDS), np.array(refs, np.int64).reshape(-1, 4), gate_row
