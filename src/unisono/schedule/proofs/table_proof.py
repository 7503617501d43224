"""Prove exactly that a table keeps its contract, for its number of ranks.

The proof runs the table on sets instead of numbers: a slot holds an origin chunk and the set of ranks that have
contributed to it. It also tracks the order of combination, so it says whether all ranks end with the same bits.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ...base.errors import AlgorithmError
from ...base.units import ranks_text
from ..contract import Fault, Slot, Value, contract, fault, ranks_in, slot_text
from ..moves import moves
from ..table import DBUF, DCHUNK, DST, ROUND, Schedule, expand

_MOST_NAMED = 8


class Proof(NamedTuple):
    """The result of a proof.

    method: "exact";
    "fingerprints": random numbers instead of sets, on sampled chunks;
    "symmetric fingerprints": on all chunks, from the rows of rank 0, which stand for all ranks;
    "parts": each part of a call over hosts keeps its contract, and all together keep the contract of the whole;
    "sampled parts": the same, on sampled chunks.
    same_bits: all ranks end with bit-identical sums (all_reduce only); None if it does not apply.
    """

    name: str
    ranks: int
    rounds: int
    method: str = "exact"
    same_bits: bool | None = None


_Held = tuple[int, int, int]
"""Origin chunk, ranks as bits, order of combination as a number: equal numbers mean equal orders."""


def prove(schedule: Schedule, *, ordered: bool = False) -> Proof:
    """Prove that at the end every slot of the contract holds each contribution exactly once.

    ordered: also prove that only neighbours in rank order are combined, as ops that do not commute require. Raises
    AlgorithmError, whose argument is a `Fault` with round, slot, reason and source line.
    """
    rounds = moves(schedule)
    promise = contract(schedule)
    state: dict[Slot, _Held] = {slot: (c, who, who.bit_length()) for slot, (c, who) in promise.before.items()}
    orders: dict[tuple[int, ...], int] = {}
    overlap = schedule.collective == "barrier"
    for number, round_ in rounds:
        new = []
        for move in round_:
            try:
                held = [state[source] for source in move.sources]
            except KeyError as empty:
                reason = _nothing(move.slot, empty.args[0])
                raise fault(schedule, reason, number=number, slot=move.slot) from None
            if len(held) > 1:
                reason = "" if overlap else _obstacle(held, ordered)
                if reason:
                    reason += f" in {slot_text(move.slot)}"
                    raise fault(schedule, reason, number=number, slot=move.slot, ordered=ordered)
                held = [_combine(held, orders, schedule.ranks)]
            new.append((move.slot, held[0]))
        state.update(new)
    for slot, value in promise.after.items():
        if state.get(slot, (-1, 0))[:2] != value:
            raise _wrong_end(schedule, slot, state.get(slot), value)
    same_bits = _same_bits(promise.after, state) if schedule.collective == "all_reduce" else None
    return Proof(schedule.name, schedule.ranks, schedule.rounds, "exact", same_bits)


def find_fault(schedule: Schedule) -> Fault | None:
    """The fault for which `prove` raises; None for a table that keeps its contract."""
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


def _obstacle(held: Sequence[_Held], ordered: bool) -> str:
    """Why these values must not be combined; "" if they may."""
    chunk, ranks, _ = held[0]
    for other, more, _ in held[1:]:
        if other != chunk:
            return f"chunk {other} would be added to chunk {chunk}"
        if more & ranks:
            return f"{ranks_text(ranks_in(more & ranks))} would be counted twice"
        if ordered and (more & -more) != 1 << ranks.bit_length():
            return f"{ranks_text(ranks_in(more))} cannot follow {ranks_text(ranks_in(ranks))}"
        ranks |= more
    return ""


def _combine(held: Sequence[_Held], orders: dict[tuple[int, ...], int], ranks: int) -> _Held:
    """Combine values. a + b and b + a are one order. (a + b) + c in one pass and in two are two orders: both round."""
    everyone = 0
    for _, who, _ in held:
        everyone |= who
    first, second, *rest = (order for _, _, order in held)
    expression = (first, second, *rest) if first < second else (second, first, *rest)
    return held[0][0], everyone, orders.setdefault(expression, ranks + 1 + len(orders))


def _wrong_end(schedule: Schedule, slot: Slot, held: _Held | None, want: Value) -> AlgorithmError:
    """The error for a slot with a wrong result. It names the last round that wrote the slot."""
    rank, (chunk, ranks) = slot[0], want
    has_chunk, has, _ = held or (chunk, 0, 0)
    if has_chunk != chunk:
        reason = f"rank {rank} ends with {_parts(has, has_chunk)} in place of {_parts(ranks, chunk)}"
    elif ranks & ~has:
        reason = f"rank {rank} ends without {_parts(ranks & ~has, chunk)}"
    else:
        reason = f"rank {rank} ends with {_parts(has & ~ranks, chunk)}, which is not for it"
    rows = expand(schedule)
    writes = rows[(rows[:, [DST, DBUF, DCHUNK]] == slot).all(axis=1), ROUND]
    if not len(writes):
        return fault(schedule, f"{reason}; no round writes it", slot=slot)
    last = int(writes[-1])
    return fault(schedule, f"{reason}; the last to write it is round {last}", slot=slot, guilty=last)


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
