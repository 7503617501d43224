"""`check_algorithm`: the proofs that a group makes before its first call, for many group sizes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...base.errors import ArgumentError
from ...engine.compile.compile_schedule import compile_schedule
from ...engine.compile.program import Lowering
from ...engine.compile.program_proof import prove_programs
from ...schedule import BLOCKED, ROOTED, Proof, Schedule, prove
from ...schedule.algorithms.catalogue import Algorithm, find


def check_algorithm(
    collective: str, algorithm: str | Algorithm | Callable[..., Any], ranks: Sequence[int] = (1, 2, 3, 4, 5, 7, 8)
) -> list[Proof]:
    """Prove an algorithm and its compiled programs for groups of these sizes and every root. Starts no process.

    algorithm: a name of the catalogue, an Algorithm, or a generator of rounds (r, p), for collectives with a root
    (r, p, root). Sizes that its restrictions exclude are skipped. Returns the proofs by size and root.

    Raises AlgorithmError, with the row and the reason, if it breaks the contract of the collective, and ArgumentError
    if its restrictions exclude all sizes.
    """
    found = find(collective, algorithm)
    proofs = []
    for size in ranks:
        if not found.allows(size):
            continue
        for root in range(size if collective in ROOTED else 1):
            schedule = found.schedule(size, root)
            proofs.append(prove(schedule))
            for lowering in lowerings(schedule):
                prove_programs(schedule, compile_schedule(schedule, lowering), lowering)
    if not proofs:
        raise ArgumentError(f"{found.full_name} allows none of {', '.join(map(str, ranks))} ranks")
    return proofs


def lowerings(schedule: Schedule) -> Iterator[Lowering]:
    """Every lowering that a schedule can have: staged or zero copy, and in place or not."""
    for zero_copy in (False, True):
        yield Lowering(zero_copy, in_place=False)
        if schedule.collective not in BLOCKED:
            yield Lowering(zero_copy, in_place=True)
