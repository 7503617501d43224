"""Prove that a table keeps its contract, for its number of ranks, be they 2 or 65,536.

The proof runs the table on sets instead of numbers: a slot holds an origin chunk and the set of ranks that have
contributed to it. It also tracks the order of combination, so it says whether all ranks end with the same bits.

If each chunk goes its own way, chunks can be followed one by one. One stands for all if all ranks do the same; of other
large tables a random sample is followed. Sets of many ranks would take all memory. There, a set is the sum of random
64-bit numbers, one for each rank, and a wrong set has the right sum with a probability of 2^-64 (Schwartz 1980, Zippel
1979). If that fails, the chunk is followed again with sets, to find the place and the reason.
"""

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np

from ..base.errors import AlgorithmError
from ..base.units import ranks_text
from .contract import HOLDERS, Fault, Slot, Value, contract, fault, ranks_in, slot_text
from .moves import moves
from .table import DBUF, DCHUNK, DST, ROUND, Schedule, expand, stray_row

_MOST_NAMED = 8
_MOST_IN_SETS = 1024  # of more ranks, sums of random numbers stand for sets
_MOST_MOVED, _SAMPLE = 1 << 17, (4, 16)
"""The most moves up to which all chunks are followed; above, the least and the most chunks that are followed."""


class Proof(NamedTuple):
    """The result of a proof.

    Attributes:
        method: "exact", or "fingerprints" if sums of random numbers stood for sets.
        followed: The chunks that were followed: "all", "one" that stands for all, or "some".
        same_bits: Whether all ranks end with bit-identical sums. None if the collective is not all_reduce.
    """

    name: str
    ranks: int
    rounds: int
    method: str = "exact"
    followed: str = "all"
    same_bits: bool | None = None


_Held = tuple[int, int, int]
"""Origin chunk, set of ranks, order of combination as a number: equal numbers mean equal orders."""


def prove(
    schedule: Schedule, *, ordered: bool = False, chunks: Sequence[int] | None = None, exact: bool | None = None
) -> Proof:
    """Prove that at the end every slot of the contract holds each contribution exactly once.

    Args:
        ordered: Also prove that only neighbours in rank order are combined, which ops that do not commute require.
        chunks: Follow only these; see `sample`. None: all.
        exact: By sets of ranks, or by sums of random numbers. None: by sets up to 1,024 ranks.

    Raises:
        AlgorithmError: The table is wrong. Its argument is a `Fault` with round, slot, reason and source line.
        ArgumentError: The table mixes `chunks` with others.
    """
    followed = "all" if chunks is None or len(set(chunks)) == schedule.chunks else "some"
    if chunks is None and schedule.symmetric and stray_row(schedule) is None:
        chunks, followed = (0,), "one"
    many = schedule.ranks > _MOST_IN_SETS if exact is None else not exact
    many = many and schedule.collective != "barrier" and not ordered
    same_bits = _by_fingerprints(schedule, chunks) if many else _run(schedule, chunks, ordered=ordered)
    method, bits = "fingerprints" if many else "exact", same_bits if schedule.collective == "all_reduce" else None
    return Proof(schedule.name, schedule.ranks, schedule.rounds, method, followed, bits)


def sample(chunks: int, moved: int) -> tuple[int, ...] | None:
    """Choose random chunks for `prove` to follow. None: it can follow all.

    Args:
        moved: How many moves all `chunks` make.
    """
    if moved <= _MOST_MOVED:
        return None
    fewest, most = _SAMPLE
    many = min(most, max(fewest, _MOST_MOVED * chunks // moved))
    return None if many >= chunks else tuple(sorted(np.random.default_rng(0).permutation(chunks)[:many].tolist()))


def _by_fingerprints(schedule: Schedule, chunks: Sequence[int] | None) -> bool:
    """Prove it by sums. Of a chunk that fails, or of all if they do not go apart, sets find the reason."""
    marks: list[int] = np.random.default_rng(0).integers(0, (1 << 64) - 1, schedule.ranks, np.uint64).tolist()
    try:
        return _run(schedule, chunks, marks)
    except AlgorithmError as error:
        slot = error.args[0].slot
        alone = slot and schedule.collective in HOLDERS and stray_row(schedule) is None
        _run(schedule, (slot[2],) if alone else chunks)
        raise


def _run(schedule: Schedule, chunks: Sequence[int] | None, marks: Sequence[int] = (), *, ordered: bool = False) -> bool:
    """Run the table on sets, or on sums of marks. Is each chunk combined in one order on all ranks?"""
    rounds, joins, sums = moves(schedule, chunks), schedule.collective == "barrier", schedule.collective == "all_reduce"
    promise = contract(schedule, chunks, marks)
    state: dict[Slot, _Held] = {slot: (c, who, slot[0] + 1) for slot, (c, who) in promise.before.items()}
    orders: dict[tuple[int, ...], int] = {}
    for number, round_ in rounds:
        new = []
        for slot, sources in round_:
            try:
                held = [state[source] for source in sources]
            except KeyError as empty:
                raise fault(schedule, _nothing(slot, empty.args[0]), number=number, slot=slot) from None
            value = held[0]
            if len(held) > 1:
                who, obstacle = _combined(held, joins, not marks, ordered)
                if obstacle:
                    reason = f"{obstacle} in {slot_text(slot)}"
                    raise fault(schedule, reason, number=number, slot=slot, ordered=ordered)
                value = value[0], who, _order(held, orders, schedule.ranks) if sums else 0
            new.append((slot, value))
        state.update(new)
    wrong = [slot for slot, want in promise.after.items() if state.get(slot, (-1, 0))[:2] != want]
    if wrong:
        slot = min(wrong)
        raise _wrong_end(schedule, chunks, slot, state.get(slot), promise.after[slot])
    return _same_bits(promise.after, state)


def find_fault(schedule: Schedule) -> Fault | None:
    """Find the fault for which `prove` raises. None: the table keeps its contract."""
    try:
        prove(schedule)
    except AlgorithmError as error:
        found: Fault = error.args[0]
        return found
    return None


def _nothing(slot: Slot, empty: Slot) -> str:
    if slot == empty:
        return f"something is added to {slot_text(slot)}, which holds nothing"
    return f"rank {slot[0]} is sent {slot_text(empty)}, which holds nothing"


def _combined(held: Sequence[_Held], joins: bool, sets: bool, ordered: bool) -> tuple[int, str]:
    """The union of values; and why they must not be combined, or "". Sums of marks do not show all reasons."""
    if joins:
        return reduce(or_, (more for _, more, _ in held)), ""
    chunk, ranks, _ = held[0]
    for other, more, _ in held[1:]:
        if other != chunk:
            return 0, f"chunk {other} would be added to chunk {chunk}"
        if sets and more & ranks:
            return 0, f"{ranks_text(ranks_in(more & ranks))} would be counted twice"
        if ordered and (more & -more) != 1 << ranks.bit_length():
            return 0, f"{ranks_text(ranks_in(more))} cannot follow {ranks_text(ranks_in(ranks))}"
        ranks += more
    return ranks, ""


def _order(held: Sequence[_Held], orders: dict[tuple[int, ...], int], ranks: int) -> int:
    """The order of a combination. a + b and b + a are one order. (a + b) + c in one pass and in two are two orders:
    both round.
    """
    expression = [order for _, _, order in held]
    if expression[0] > expression[1]:
        expression[:2] = expression[1::-1]
    return orders.setdefault(tuple(expression), ranks + 1 + len(orders))


def _wrong_end(
    schedule: Schedule, chunks: Sequence[int] | None, slot: Slot, held: _Held | None, want: Value
) -> AlgorithmError:
    """The error for a slot with a wrong result. It names the last round that wrote the slot."""
    rank, (chunk, ranks) = slot[0], want
    has_chunk, has, _ = held or (chunk, 0, 0)
    if has_chunk != chunk:
        reason = f"rank {rank} ends with {_parts(has, has_chunk)} in place of {_parts(ranks, chunk)}"
    elif ranks & ~has:
        reason = f"rank {rank} ends without {_parts(ranks & ~has, chunk)}"
    else:
        reason = f"rank {rank} ends with {_parts(has & ~ranks, chunk)}, which is not for it"
    rows = expand(schedule, chunks)
    writes = rows[(rows[:, [DST, DBUF, DCHUNK]] == slot).all(axis=1), ROUND]
    if not len(writes):
        return fault(schedule, f"{reason}; no round writes it", slot=slot)
    last = int(writes[-1])
    return fault(schedule, f"{reason}; round {last} wrote it last", slot=slot, guilty=last)


def _parts(bits: int, chunk: int) -> str:
    """`rank 1's part of chunk 0`, or `the parts of ranks 1, 2 of chunk 0`."""
    ranks = list(ranks_in(bits))
    if len(ranks) == 1:
        return f"rank {ranks[0]}'s part of chunk {chunk}"
    return f"the parts of {ranks_text(ranks, _MOST_NAMED)} of chunk {chunk}"


def _same_bits(after: dict[Slot, Value], state: dict[Slot, _Held]) -> bool:
    """Is each chunk combined in one order on all ranks?"""
    orders: dict[int, set[int]] = {}
    for slot in after:
        orders.setdefault(slot[2], set()).add(state[slot][2])
    return all(len(order) == 1 for order in orders.values())
