"""The exact proof that a table keeps its contract, for the number of ranks that it is made for.

The table is run on sets in place of numbers: what a slot holds is an origin chunk and the set of ranks whose
contributions are in it. Beside it runs the order in which they were combined, so that the proof also says whether all
ranks end with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import AlgorithmError
from .contract import Slot, Value, contract
from .moves import Move, moves
from .table import Schedule

__all__ = ["Proof", "prove"]


@dataclass(frozen=True)
class Proof:
    """What has been proved of a schedule.

    method: "exact", "symmetric" (one rank speaks for all) or "fingerprints" (sampled chunks).
    same_bits: every rank ends with bit-identical sums (all_reduce only). same_order: every chunk is combined in the
    same order, so that a sum does not depend on where in a tensor it stands. None where there is nothing to say.
    """

    name: str
    ranks: int
    rounds: int
    method: str = "exact"
    same_bits: bool | None = None
    same_order: bool | None = None


_Held = tuple[int, int, int]
"""Origin chunk, ranks as bits, order of combination as a number: equal numbers mean equal orders."""


def prove(schedule: Schedule, *, ordered: bool = False) -> Proof:
    """Proof that after the table every slot that the contract names holds each contribution exactly once.

    ordered: also that contributions are only ever combined as neighbours in rank order, as an operation that does not
    commute needs it. Raises AlgorithmError with round, rank, slot and reason.
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
                raise _wrong(schedule, number, move, f"{_slot(empty.args[0])} holds nothing") from None
            if len(held) > 1:
                reason = "" if overlap else _obstacle(held, ordered)
                if reason:
                    raise _wrong(schedule, number, move, reason)
                held = [_combine(held, orders, schedule.ranks)]
            new.append((move.slot, held[0]))
        state.update(new)
    for slot, value in promise.after.items():
        if state.get(slot, (-1, 0))[:2] != value:
            have = _value(state[slot][:2]) if slot in state else "nothing"
            raise AlgorithmError(f"{schedule.name}: at the end {_slot(slot)} holds {have} instead of {_value(value)}")
    return Proof(schedule.name, schedule.ranks, schedule.rounds, "exact", *_sameness(schedule, promise.after, state))


def _obstacle(held: Sequence[_Held], ordered: bool) -> str:
    """Why these values must not be combined, or ""."""
    chunk, ranks, _ = held[0]
    for other, more, _ in held[1:]:
        if other != chunk:
            return f"it would add chunk {other} to chunk {chunk}"
        if more & ranks:
            return f"{_ranks(more & ranks)} would be counted twice"
        if ordered and (more & -more) != 1 << ranks.bit_length():
            return f"{_ranks(more)} cannot follow {_ranks(ranks)}, if the order matters"
        ranks |= more
    return ""


def _combine(held: Sequence[_Held], orders: dict[tuple[int, ...], int], ranks: int) -> _Held:
    """The combination. a + b and b + a are one order; (a + b) + c in one pass and in two are not: rounding differs."""
    everyone = 0
    for _, who, _ in held:
        everyone |= who
    first, second, *rest = (order for _, _, order in held)
    expression = (first, second, *rest) if first < second else (second, first, *rest)
    return held[0][0], everyone, orders.setdefault(expression, ranks + 1 + len(orders))


def _sameness(
    schedule: Schedule, after: dict[Slot, Value], state: dict[Slot, _Held]
) -> tuple[bool | None, bool | None]:
    """same_bits and same_order."""
    if schedule.collective not in ("reduce", "reduce_scatter", "all_reduce"):
        return None, None
    orders: dict[int, set[int]] = {}
    for slot in after:
        orders.setdefault(slot[2], set()).add(state[slot][2])
    same_bits = all(len(order) == 1 for order in orders.values())
    return same_bits if schedule.collective == "all_reduce" else None, len(set().union(*orders.values())) == 1


def _wrong(schedule: Schedule, number: int, move: Move, reason: str) -> AlgorithmError:
    return AlgorithmError(f"{schedule.name}: round {number}: {move}: {reason}")


def _slot(slot: Slot) -> str:
    return str(Move(slot, []))


def _ranks(bits: int) -> str:
    names = [str(r) for r in range(bits.bit_length()) if bits >> r & 1]
    return ("rank " if len(names) == 1 else "ranks ") + ", ".join(names)


def _value(value: Value) -> str:
    return f"chunk {value[0]} of {_ranks(value[1])}"
