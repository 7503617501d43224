"""Steps of thread blocks as a table: their order, their deadlocks and races, the rounds of what they move.

A step follows the step before it in its thread block, and the steps that it waits for. So steps have a partial order,
and a file is right only if it is right for every timing: no step waits for itself (a deadlock), and two steps that use
one slot, of which one writes it, are ordered (else a race). Then any one order tells what every order does.

The round of a step is the length of the longest path to it. What is received is one row of the table, read where it
was sent from. If that place is overwritten before the receiver has come so far, the content waits in a chunk of T.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from operator import or_

import numpy as np

from ...base.errors import AlgorithmError
from ..contract import Fault, Slot, contract, slot_text
from ..proof import prove
from ..table import COPY, DBUF, DCHUNK, DST, OP, ROUND, SBUF, SCHUNK, SRC, N, Rows, Schedule, T
from .steps import FLIGHT, Step


def make_table(steps: Sequence[Step], empty: Schedule, path: str) -> Schedule:
    """The table of these steps. empty: the same table without rows. path: the file, for errors.

    Raises AlgorithmError, with file, gpu, thread block and step, for a deadlock, a race, and a wrong result.
    """

    def wrong(reason: str, step: Step, slot: Slot | None = None) -> AlgorithmError:
        return AlgorithmError(Fault(empty.name, empty.collective, reason, None, slot, f"{path}: {step}"))

    try:
        order = [*TopologicalSorter({index: step.after for index, step in enumerate(steps)}).static_order()]
    except CycleError as error:
        first, second, *_ = (steps[index] for index in error.args[1])
        said = f"deadlock: the step waits for {first}, which comes after it"
        raise wrong(said, second) from None
    _find_races(steps, order, wrong)
    times = _times(steps, order)
    order.sort(key=times.__getitem__)
    rows, wrote = _rows(steps, order, times, empty)
    ends = rows[:, [SCHUNK, DCHUNK]] + rows[:, [N]]
    used = int(ends[rows[:, [SBUF, DBUF]] == T].max(initial=0))
    table = empty.replace(rows=rows, scratch=used if used > empty.chunks else 0)
    try:
        prove(table)
    except AlgorithmError as error:
        found: Fault = error.args[0]
        writes = [at for at in wrote if at[1] == found.slot and found.round in (None, at[0])]
        where = f"{path}: {wrote[max(writes)]}" if writes else path
        raise AlgorithmError(found._replace(line=where)) from None
    return table


def _find_races(steps: Sequence[Step], order: Sequence[int], wrong: Callable[..., AlgorithmError]) -> None:
    """Raise for two steps that use one slot, of which one writes it, in no order."""
    uses: dict[int, list[tuple[int, Slot, bool]]] = defaultdict(list)
    for index in order:
        for slot, writes in steps[index].uses().items():
            uses[slot[0]].append((index, slot, writes))
    for used in uses.values():
        bits = {index: 1 << count for count, index in enumerate(dict.fromkeys(index for index, *_ in used))}
        before = [0] * len(steps)  # the steps that use this gpu's slots and come before a step, and itself, as bits
        for index in order:
            before[index] = reduce(or_, (before[other] for other in steps[index].after), bits.get(index, 0))
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
                if not before[index] & bits[other]:
                    said = f"the step {'writes' if writes else 'reads'} {slot_text(slot)}, which {steps[other]} {does}"
                    reason = f"race: {said}, and nothing orders the two. Let one wait for the other"
                    raise wrong(reason, steps[index], slot)


def _offsets(step: Step) -> tuple[list[int], int]:
    """For each move of a step how many rounds after the first one it is, and the number of rounds of them all.

    A message takes no round, nor does a sum until something is added.
    """
    ready, added, offsets = dict[Slot, int](), dict[Slot, int](), []
    for source, target, op in step.moves:
        at = ready.get(source, 0)
        if op != COPY:
            at = max(at, added.get(target, 0))
            added[target] = at + 1
        offsets.append(at)
        ready[target] = at + (op != COPY or target[1] != FLIGHT)
    return offsets, max(ready.values(), default=0)


def _times(steps: Sequence[Step], order: Sequence[int]) -> list[int]:
    """The longest path to each step. Sends, and steps that move nothing, take no time, but a send follows another."""
    times, takes = [0] * len(steps), [_offsets(step)[1] for step in steps]
    for index in order:
        step = steps[index]
        for other in step.after:
            before = steps[other]
            follows = before.sends and step.sends and (before.gpu, before.block) == (step.gpu, step.block)
            times[index] = max(times[index], times[other] + (takes[other] or follows))
    return times


def _keep_totals(steps: Sequence[Step], results: set[Slot], new: Callable[[int], Slot]) -> None:
    """Give a place to each sum that is passed on: its first input's if no later step needs that, else a new chunk."""
    needed = set(results)
    for step in reversed(steps):
        totals, homes = set[Slot](), dict[Slot, Slot]()
        for source, target, op in reversed(step.moves):
            if target[1] == FLIGHT and op != COPY:
                totals.add(target)
            elif target in totals:
                homes[target] = new(step.gpu) if source[0] != step.gpu or source in needed else source
            (needed.discard if op == COPY else needed.add)(target)
            needed.add(source)
        moves = [(homes.get(source, source), homes.get(target, target), op) for source, target, op in step.moves]
        step.moves = [move for move in moves if move[0] != move[1]]


def _rows(
    steps: Sequence[Step], order: Sequence[int], times: Sequence[int], empty: Schedule
) -> tuple[Rows, dict[tuple[int, Slot], Step]]:
    """The rows of steps in order, and which step wrote a slot in a round."""
    scratch = dict.fromkeys(range(empty.ranks), empty.scratch)

    def new(rank: int) -> Slot:
        scratch[rank] += 1
        return rank, T, scratch[rank] - 1

    _keep_totals([steps[index] for index in order], set(contract(empty).after), new)
    moves = [
        (steps[index], times[index] + offset, *move)
        for index in order
        for offset, move in zip(_offsets(steps[index])[0], steps[index].moves, strict=True)
    ]
    writes: dict[Slot, list[int]] = defaultdict(list)
    for _, time, _, target, _ in moves:
        writes[target].append(time)
    sent: dict[Slot, tuple[Slot, int]] = {}  # a message: where its content is, and from which round on
    rows: list[tuple[int, ...]] = []
    wrote: dict[tuple[int, Slot], Step] = {}
    for step, time, source, target, op in moves:
        origin, since = sent.get(source, (source, time))
        if target[1] == FLIGHT:
            sent[target] = origin, time
            continue
        if any(since <= when < time for when in writes[origin]):
            kept = new(target[0])
            rows.append((since, origin[0], kept[0], *origin[1:], *kept[1:], 1, COPY))
            wrote[since, kept] = step
            origin = kept
        rows.append((time, origin[0], target[0], *origin[1:], *target[1:], 1, op))
        wrote[time, target] = step
    return _as_runs(rows), wrote


def _as_runs(singles: list[tuple[int, ...]]) -> Rows:
    """Rows in order, as runs of chunks."""
    rows = np.array(singles, np.int64).reshape(-1, 9)
    rows = rows[np.lexsort([rows[:, c] for c in (DCHUNK, SCHUNK, DBUF, SBUF, DST, SRC, OP, ROUND)])]
    same = (np.diff(rows[:, [ROUND, SRC, DST, SBUF, DBUF, OP]], axis=0) == 0).all(axis=1)
    goes_on = same & (np.diff(rows[:, [SCHUNK, DCHUNK]], axis=0) == 1).all(axis=1)
    starts = np.flatnonzero(np.concatenate([[True], ~goes_on])[: len(rows)])
    out: Rows = rows[starts]
    out[:, N] = np.diff(starts, append=len(rows))
    return out
