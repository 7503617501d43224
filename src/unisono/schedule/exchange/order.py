"""Steps of thread blocks as a table: their order, their deadlocks and races, the rounds of what they move.

A step follows the step before it in its thread block, and the steps that it waits for. So steps have a partial order,
and a file is right only if it is right for every timing: no step waits for itself (a deadlock), and two steps that use
one slot, of which one writes it, are ordered (else a race). Then any one order tells what every order does.

The round of a step is the length of the longest path to it. What is received is one row of the table, read where it
was sent from. If that place is overwritten before the receiver has come so far, the content waits in a chunk of T.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...base.errors import AlgorithmError
from ..contract import Fault, Slot, contract, slot_text
from ..proof import prove
from ..table import COPY, DBUF, DCHUNK, DST, OP, ROUND, SBUF, SCHUNK, SRC, N, Rows, Schedule, T

FLIGHT = T + 1
"""The buffer of slots that no rank has: content under way, and sums that are passed on without being kept."""


@dataclass(eq=False)
class Step:
    """One step of a thread block.

    gpu, block, number: which step it is.
    moves: (source, target, op) for each chunk, in order.
    after: the indices of the steps that come before it.
    leaves: it only sends. A row of the table is its receiver's.
    """

    gpu: int
    block: int
    number: int
    moves: list[tuple[Slot, Slot, int]] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    leaves: bool = False

    def __str__(self) -> str:
        return f"gpu {self.gpu}, thread block {self.block}, step {self.number}"


def make_table(steps: Sequence[Step], empty: Schedule, path: str) -> Schedule:
    """The table of these steps. empty: the same table without rows. path: the file, for errors.

    Raises AlgorithmError, with file, gpu, thread block and step, for a deadlock, a race, and a wrong result.
    """

    def wrong(reason: str, step: Step, slot: Slot | None = None) -> AlgorithmError:
        return AlgorithmError(Fault(empty.name, empty.collective, reason, None, slot, f"{path}: {step}"))

    levels = _levels(steps, wrong)
    _find_races(steps, levels, wrong)
    rows = _Rows(steps, levels, empty, wrong)
    made = rows.table()
    used = 1 + int(max(made[made[:, b] == T][:, c].max(initial=-1) for b, c in ((SBUF, SCHUNK), (DBUF, DCHUNK))))
    table = empty.replace(rows=made, scratch=used if used > empty.chunks else 0)
    try:
        prove(table)
    except AlgorithmError as error:
        found: Fault = error.args[0]
        writes = [at for at in rows.wrote if at[1] == found.slot and found.round in (None, at[0])]
        if not writes:
            raise AlgorithmError(found._replace(line=path)) from None
        raise AlgorithmError(found._replace(line=f"{path}: {rows.wrote[max(writes)]}")) from None
    return table


_Wrong = Callable[..., AlgorithmError]


def _levels(steps: Sequence[Step], wrong: _Wrong) -> list[list[int]]:
    """The steps by level: each comes after steps of lower levels only."""
    waits, followers = [len(step.after) for step in steps], defaultdict(list)
    for index, step in enumerate(steps):
        for before in step.after:
            followers[before].append(index)
    levels, level = [], [index for index, many in enumerate(waits) if not many]
    while level:
        levels.append(level)
        done = Counter(follower for index in level for follower in followers[index])
        for index, many in done.items():
            waits[index] -= many
        level = [index for index in done if not waits[index]]
    stuck = {index for index, many in enumerate(waits) if many}
    if stuck:
        at, seen = min(stuck), dict[int, int]()
        while at not in seen:
            seen[at] = next(before for before in steps[at].after if before in stuck)
            at = seen[at]
        said = f"it ends in a deadlock, because the step waits for {steps[seen[at]]}, which comes after it"
        raise wrong(said, steps[at])
    return levels


def _find_races(steps: Sequence[Step], levels: Sequence[Sequence[int]], wrong: _Wrong) -> None:
    """Raise for two steps that use one slot, of which one writes it, in no order."""
    blocks = {block: number for number, block in enumerate(dict.fromkeys((step.gpu, step.block) for step in steps))}
    mine = np.array([blocks[step.gpu, step.block] for step in steps])
    place = np.array([step.number for step in steps]) + 1
    most = max((len(step.after) for step in steps), default=0) or 1
    before = np.full((len(steps), most), len(steps))
    for index, step in enumerate(steps):
        before[index, : len(step.after)] = step.after
    uses: dict[int, list[tuple[int, Slot, bool]]] = defaultdict(list)
    for level in levels:
        for index in level:
            for slot, writes in _used(steps[index]):
                uses[slot[0]].append((index, slot, writes))
    for used in uses.values():
        # How many steps of each of these blocks come before a step, itself included.
        column = np.full(len(blocks), -1)
        some = np.unique(mine[[index for index, *_ in used]])
        column[some] = np.arange(len(some))
        known = np.zeros((len(steps) + 1, len(some)), np.int32)
        for level in levels:
            known[level] = known[before[level]].max(axis=1)
            own = np.array(level)[column[mine[level]] >= 0]
            known[own, column[mine[own]]] = place[own]
        written: dict[Slot, int] = {}
        readers: dict[Slot, list[int]] = defaultdict(list)
        for index, slot, writes in used:
            others = [(written[slot], "writes")] if slot in written else []
            if writes:
                others += [(reader, "reads") for reader in readers.pop(slot, ())]
                written[slot] = index
            else:
                readers[slot].append(index)
            for other, does in others:
                if known[index, column[mine[other]]] < place[other]:
                    first, verb = steps[other], "writes" if writes else "reads"
                    reason = f"the step {verb} {slot_text(slot)}, which {first} {does}, and nothing orders the two"
                    raise wrong(f"there is a race: {reason}. Let one wait for the other", steps[index], slot)


def _used(step: Step) -> list[tuple[Slot, bool]]:
    """The slots of ranks that a step reads and writes; False for those that it only reads."""
    used: dict[Slot, bool] = {}
    for source, target, _ in step.moves:
        used.setdefault(source, False)
        used[target] = True
    return [(slot, writes) for slot, writes in used.items() if slot[1] != FLIGHT]


class _Version:
    """The content of a slot between two writes: the rounds in which it was written, last read and overwritten."""

    def __init__(self, slot: Slot, written: int) -> None:
        self.slot, self.written, self.read, self.gone = slot, written, written, float("inf")


class _Rows:
    """The rows of steps in order. wrote: (round, slot) -> step. scratch: rank -> chunks of T that are in use."""

    def __init__(self, steps: Sequence[Step], levels: Sequence[Sequence[int]], empty: Schedule, wrong: _Wrong) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.wrote: dict[tuple[int, Slot], Step] = {}
        self.scratch: dict[int, int] = dict.fromkeys(range(empty.ranks), empty.scratch)
        promise = contract(empty)
        self._now = {slot: _Version(slot, -1) for slot in promise.before}
        times = _times(steps, levels)
        moves = [(index, move) for level in levels for index in level for move in steps[index].moves]
        last = _last_reads([move for _, move in moves], set(promise.after))
        free: set[Slot] = set()  # content under way whose place no other step reads
        for (index, (source, target, op)), is_last in zip(moves, last, strict=True):
            self._step, self._time = steps[index], times[index]
            have = self._now.get(source)
            if have is None:
                raise wrong(f"the step takes {slot_text(source)}, which holds nothing", self._step, source)
            if target[1] != FLIGHT:
                if op != COPY and target not in self._now:
                    raise wrong(f"the step adds to {slot_text(target)}, which holds nothing", self._step, target)
                self._place(have, target, op)
            elif op == COPY:
                self._now[target] = have
                if is_last and source[0] == target[0]:
                    free.add(target)
            else:
                into = self._now[target]
                if target not in free or self._now[into.slot] is not into:
                    into = self._settle(into, target[0])
                self._now[target] = self._place(have, into.slot, op)

    def _place(self, source: _Version, target: Slot, op: int) -> _Version:
        """Add a row in the round of the step, or in the next one that its slots allow."""
        old = self._now.get(target) or _Version(target, -1)
        first = max(source.written + 1, old.written + 1, old.read)
        if first > source.gone:
            source = self._settle(source, target[0])
            first = max(first, source.written + 1)
        first = max(first, int(min(self._time, source.gone)))
        source.read = max(source.read, first)
        old.gone = first
        self._now[target] = new = _Version(target, first)
        self.rows.append((first, source.slot[0], target[0], *source.slot[1:], *target[1:], 1, op))
        self.wrote[first, target] = self._step
        return new

    def _settle(self, version: _Version, rank: int) -> _Version:
        """Copy content to a new chunk of T as soon as it is there."""
        number = self.scratch[rank]
        self.scratch[rank] += 1
        self._time, time = 0, self._time
        settled = self._place(version, (rank, T, number), COPY)
        self._time = time
        return settled

    def table(self) -> Rows:
        """The rows in order, as runs of chunks."""
        rows = np.array(self.rows, np.int64).reshape(-1, 9)
        rows = rows[np.lexsort([rows[:, c] for c in (DCHUNK, SCHUNK, OP, DBUF, SBUF, DST, SRC, ROUND)])]
        same = (np.diff(rows[:, [ROUND, SRC, DST, SBUF, DBUF, OP]], axis=0) == 0).all(axis=1)
        goes_on = same & (np.diff(rows[:, [SCHUNK, DCHUNK]], axis=0) == 1).all(axis=1)
        starts = np.flatnonzero(np.concatenate([[True], ~goes_on])[: len(rows)])
        out = rows[starts]
        out[:, N] = np.diff(starts, append=len(rows))
        return out


def _times(steps: Sequence[Step], levels: Sequence[Sequence[int]]) -> list[int]:
    """The longest path to each step. Steps that move nothing, and sends, take no time, but a send follows another."""
    times = [0] * len(steps)
    for level in levels:
        for index in level:
            step = steps[index]
            for other in step.after:
                before = steps[other]
                follows = before.leaves and step.leaves and before.block == step.block and before.gpu == step.gpu
                takes = bool(before.moves) and (not before.leaves or follows)
                times[index] = max(times[index], times[other] + takes)
    return times


def _last_reads(moves: Sequence[tuple[Slot, Slot, int]], results: set[Slot]) -> list[bool]:
    """For each move: is its source read by no later one, and no result?"""
    needed, last = set(results), []
    for source, target, op in reversed(moves):
        (needed.discard if op == COPY else needed.add)(target)
        last.append(source not in needed)
        needed.add(source)
    return last[::-1]
