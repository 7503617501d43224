"""Second pass: where each version lies, and the order of each rank's moves.

- A version lies in a user's tensor if it is the input or the result, otherwise in staging.
- Peers read it in the owner's staging area (staged lowering), or in the tensor (zero copy) unless a move overwrites it
  while they may still read it.
- An input that peers read from staging is published there once; before the gate if the first round needs it.
"""

from __future__ import annotations

from typing import NamedTuple

from .program import IN, OUT, STAGE, Lowering
from .versions import Place, ProgramMove, Version, Versions

_NEVER = float("inf")


class Placed(NamedTuple):
    """The moves before the gate, those after it in order, and the number of staging slots of each rank."""

    before_gate: list[ProgramMove]
    after_gate: list[ProgramMove]
    slots: list[int]


def memory(place: Place, lowering: Lowering) -> Place:
    """The memory of a place: with in-place lowering, the output is the input."""
    return place._replace(where=IN) if lowering.in_place and place.where == OUT else place


def place(versions: Versions, ranks: int, lowering: Lowering) -> Placed:
    """Set the places of every version, and add the moves that publish inputs and copy them to outputs."""
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
            kept = all(m is writer or m.round < until for m in version.readers if m.rank == version.rank)
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
        _copy(version, -0.25, version.result)
        for version in versions.finals
        if version.given and version.result and memory(version.result, lowering) != version.given
    ]
    before = [m for m in publish if m.round < 0]
    after = sorted([*(m for m in publish if m.round >= 0), *copies, *versions.moves], key=lambda m: m.round)
    return Placed(before, after, slots)


def _each(versions: Versions) -> list[Version]:
    """Every version once, in the order of the table."""
    seen: dict[Version, None] = {}
    for move in versions.moves:
        seen.update(dict.fromkeys(move.inputs))
        if move.makes:
            seen[move.makes] = None
    return list(seen)


def _copy(version: Version, at: float, to: Place) -> ProgramMove:
    move = ProgramMove(version.rank, at, version.sub, [], None, version.extent)
    if version.given:
        move.source = [version.given]
    move.to = [to]
    return move
