"""What `explain` and `compare` say of an algorithm: its costs, its proof, and what was left out for want of time.

Small tables are counted and proved exactly. For many ranks the rows of one rank stand for all, where all do the same;
otherwise random fingerprints prove the table. A table that would be too large to make is not made: its costs are then
those of the formulas in its docstring, which the tests compare with the counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import log2

from ....base.errors import ArgumentError, UnisonoError
from ....base.units import plural
from ....schedule import (
    DUALS,
    HOLDERS,
    Proof,
    Schedule,
    count,
    lower_bounds,
    prove,
    prove_by_fingerprints,
    prove_symmetric,
)
from ....schedule.algorithms import Algorithm, evaluate, lines
from .target import Target

MOST_EXACT = 128
"""Up to so many ranks a table is proved exactly and its rounds can be shown."""

_MOST_ROWS = 500_000


@dataclass(frozen=True)
class Costs:
    """Costs of an algorithm, or lower bounds: of the busiest rank, as fractions of the vector; None where not known.

    alike: which of `sent`, `received` and `added` are the same on every rank. bound: whether a formula says "at most".
    """

    rounds: float
    sent: float
    received: float | None
    added: float | None
    messages: int | None = None
    ports: int = 1
    alike: frozenset[str] = frozenset()
    bound: bool = False


@dataclass(frozen=True)
class Facts:
    """What is known of a target. proof: None where it was left out; then `note` says why, and how to ask for it."""

    costs: Costs | None
    proof: Proof | None
    took_s: float
    note: str = ""


def facts(target: Target, whole: bool = False) -> Facts:
    """Count and prove an algorithm in the way that suits the number of ranks.

    whole: make the whole table and prove it exactly, however long it takes. Raises AlgorithmError for a wrong table.
    """
    algorithm, ranks = target.algorithm, target.ranks
    target.check()
    begin = time.perf_counter()

    def known(schedule: Schedule, proof: Proof | None, note: str = "") -> Facts:
        return Facts(_counted(schedule), proof, time.perf_counter() - begin, note)

    if whole or ranks <= MOST_EXACT:
        return known(target.schedule, prove(target.schedule))
    ask = f"--ranks {MOST_EXACT} or --whole"
    one = algorithm.symmetric(ranks)
    if one is not None:
        return known(one, prove_symmetric(one))
    rows = _expected_rows(algorithm, ranks)
    if rows > _MOST_ROWS:
        note = f"left out: the table would have about {rows:.2g} rows; ask for it with {ask}"
        return Facts(_formulas(algorithm, ranks), None, 0.0, note)
    schedule = target.schedule
    if schedule.collective in HOLDERS:
        return known(schedule, prove_by_fingerprints(schedule))
    return known(schedule, None, f"left out above {plural(MOST_EXACT, 'rank')}; ask for it with {ask}")


def bound_costs(collective: str, ranks: int) -> Costs:
    """The lower bounds of a collective: no algorithm with one message at a time costs less."""
    bounds, own = lower_bounds(collective, ranks), (ranks > 1) / ranks
    dual = DUALS.get(collective, collective)  # what it sends, this one receives
    # All but the root give (gather) or take (scatter) one block only.
    sent = own if collective == "gather" else bounds.sent
    received = own if collective == "scatter" else lower_bounds(dual, ranks).sent
    return Costs(bounds.rounds, sent, received, bounds.added)


def _counted(schedule: Schedule) -> Costs:
    counts = count(schedule)
    alike = frozenset(name for name in ("sent", "received", "added") if len(set(getattr(counts, name))) == 1)
    return Costs(
        counts.rounds,
        counts.most_sent,
        counts.most_received,
        counts.most_added,
        max(counts.messages),
        counts.ports,
        alike,
    )


def _formulas(algorithm: Algorithm, ranks: int) -> Costs | None:
    """The costs that the docstring states; None for an algorithm of the user's own without formulas."""
    try:
        stated = lines(algorithm.doc)
        sent, _, received = stated["bytes"].partition("; received: ")
        rounds, most_sent = evaluate(stated["rounds"], ranks), evaluate(sent, ranks)
        most_received = evaluate(received, ranks) if received else None
    except ArgumentError:
        return None
    bound = any(formula.startswith("at most ") for formula in (stated["rounds"], sent, received))
    return Costs(rounds, most_sent, most_received, None, bound=bound)


def _expected_rows(algorithm: Algorithm, ranks: int) -> float:
    """About how many rows the table has, by the growth from 256 to 512 ranks."""
    try:
        few, many = (len(algorithm.schedule(p).rows) for p in (256, 512))
    except UnisonoError:
        return float(ranks) ** 2
    return many * (ranks / 512) ** log2(many / few) if few else 0.0
