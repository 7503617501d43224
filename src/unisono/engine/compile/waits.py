"""Third and fourth pass: puts and waits.

Put: a copy of a peer's combined value becomes one more output of the move that combines it, if vector clocks prove that
no other move can be using the destination. So two-shot and ring reduce and distribute in one pass.

Waits: a move waits for the makers of its inputs and, with zero copy, for the last users of what it overwrites. A wait
that an earlier one implies is left out.
"""

from __future__ import annotations

from collections import defaultdict

from .places import Placed, memory
from .program import OUT, STAGE, Lowering
from .versions import Place, ProgramMove


def order(
    placed: Placed, ranks: int, lowering: Lowering
) -> tuple[list[list[ProgramMove]], list[list[ProgramMove]], int]:
    """Each rank's moves before the gate and after it, with their waits, and the step that the gate posts.

    Steps count the moves of a rank. The gate posts all moves before it, as the same step on all ranks.
    """
    return _Order(placed, ranks, lowering).result()


class _Order:
    def __init__(self, placed: Placed, ranks: int, lowering: Lowering) -> None:
        self.ranks, self.lowering = ranks, lowering
        self.before: list[list[ProgramMove]] = [[] for _ in range(ranks)]
        self.after: list[list[ProgramMove]] = [[] for _ in range(ranks)]
        for move in placed.before_gate:
            self.before[move.rank].append(move)
        self.gate = 1 + max(map(len, self.before))
        for moves in self.before:
            for move in moves:
                move.step = self.gate
        self.clock = [[self.gate if q == r else 0 for q in range(ranks)] for r in range(ranks)]
        self.at_gate = [list(clock) for clock in self.clock]
        self.publisher = {move.to[0]: move for moves in self.before for move in moves}
        self.users: dict[Place, list[ProgramMove]] = defaultdict(list)  # the moves that access a user's memory
        for move in placed.before_gate:
            self.use(move)
        for move in placed.after_gate:
            self.add(move)
        if lowering.zero_copy:
            for rank in range(ranks):
                self.leave(rank)

    def result(self) -> tuple[list[list[ProgramMove]], list[list[ProgramMove]], int]:
        return self.before, self.after, self.gate

    def add(self, move: ProgramMove) -> None:
        if self.put(move):
            return
        needs: list[ProgramMove] = []
        for version in move.inputs:
            place = version.home if version.rank == move.rank else version.abroad
            if place is None:
                continue
            move.source.append(place)
            if version.maker:
                needs.append(version.maker)
            elif place in self.publisher:
                needs.append(self.publisher[place])
        if self.lowering.zero_copy:
            needs += [user for place in move.to if place.where != STAGE for user in self.users[self.memory(place)]]
        self.wait(move, needs)
        moves = self.after[move.rank]
        moves.append(move)
        move.step = self.gate + len(moves)
        self.clock[move.rank][move.rank] = move.step
        move.clock = list(self.clock[move.rank])
        if move.to[0].where == STAGE and move.makes is None:
            self.publisher[move.to[0]] = move
        self.use(move)

    def use(self, move: ProgramMove) -> None:
        for place in [*move.source, *move.to]:
            if place.where != STAGE:
                self.users[self.memory(place)].append(move)

    def put(self, move: ProgramMove) -> bool:
        """Make this copy an output of the move that makes its input, if the destination is free by then."""
        maker = move.inputs[0].maker if len(move.inputs) == 1 else None
        if not (self.lowering.zero_copy and maker and len(maker.inputs) > 1 and move.makes):
            return False
        if len(move.to) != 1 or move.to[0].where != OUT or any(m.round <= move.round for m in move.makes.readers):
            return False
        users = self.users[self.memory(move.to[0])]
        if not all(user is maker or user.step <= maker.clock[user.rank] for user in users):
            return False
        maker.to.append(move.to[0])
        users.append(maker)
        move.makes.maker = maker
        return True

    def leave(self, rank: int) -> None:
        """Add a last wait: a rank returns when no peer uses its tensors any more."""
        last = ProgramMove(rank, float("inf"), 0, [], None)
        self.wait(last, [m for place, users in self.users.items() if place.rank == rank for m in users])
        if last.waits:
            last.step = self.gate + len(self.after[rank]) + 1
            self.after[rank].append(last)

    def wait(self, move: ProgramMove, needs: list[ProgramMove]) -> None:
        """Add waits for these moves, the latest first, because it implies the most."""
        mine = self.clock[move.rank]
        for need in sorted(needs, key=lambda m: (-m.round, -m.step, (m.rank - move.rank) % self.ranks)):
            if need.rank != move.rank and mine[need.rank] < need.step:
                move.waits.append((need.rank, need.step))
                seen = need.clock or self.at_gate[need.rank]
                mine[:] = map(max, mine, seen)

    def memory(self, place: Place) -> Place:
        return memory(place, self.lowering)
