"""Why a job does not go on, from two looks at it: which ranks are stuck, because of which, and what can be done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...base.units import format_seconds, plural, ranks_text
from .snapshot import Culprit, RankSnapshot, Snapshot

_MOST = 8


class Diagnosis(NamedTuple):
    """Why a job does not go on.

    lines: the text for the user.
    ranks: the ranks whose stacks to show, the culprits first.
    stuck: the groups in which ranks were in one call at both looks, by where their memory begins.
    after: the later look.
    """

    lines: Sequence[str]
    ranks: Sequence[int]
    stuck: Sequence[int]
    after: Snapshot


def diagnose(before: Snapshot, after: Snapshot, line_of: Callable[[int], str] = lambda _rank: "") -> Diagnosis:
    """Compare two looks at a job, a moment apart. line_of: gives the line of the user's code at which a rank is."""
    same = [rank for rank in after.waits if _at(before.ranks[rank]) == _at(after.ranks[rank]) is not None]
    culprits = [one for one in after.culprits if set(one.waiting) & set(same)]
    if not culprits:
        busy = sum(one.calls - two.calls for one, two in zip(after.ranks, before.ranks, strict=True))
        lines = [f"no rank is stuck: the ranks have made {plural(busy, 'call')} between two looks"]
        return Diagnosis(lines, (), (), after)
    lines, ranks = [], []
    for culprit in culprits:
        lines += _about(culprit, after, line_of)
        ranks += [*culprit.ranks, *(rank for rank in culprit.waiting if rank not in culprit.ranks)]
    groups = {after.ranks[rank].inside.group for rank in same if after.ranks[rank].inside}  # type: ignore[union-attr]
    stuck = dict.fromkeys(
        track.start for track in after.tracks if track.rank in same and track.group in groups and track.reached[1]
    )
    return Diagnosis(lines, list(dict.fromkeys(ranks)), list(stuck), after)


def _at(seen: RankSnapshot) -> tuple[str, int] | None:
    """The call in which a rank is."""
    return None if seen.inside is None else (seen.inside.group, seen.inside.number)


def headlines(culprit: Culprit, after: Snapshot, line_of: Callable[[int], str] = lambda _rank: "") -> list[str]:
    """A line for each rank of a culprit: what it does, and which ranks have waited for it. A circle is one line."""
    since = format_seconds((after.at_ns - culprit.since_ns) / 1e9)
    if culprit.is_circle:
        return [f"deadlock for {since}: {culprit.text}"]
    have = "has" if len(culprit.waiting) == 1 else "have"
    waiting = f"{ranks_text(culprit.waiting, _MOST)} {have} waited {since} for it"
    lines = []
    for rank in culprit.ranks:
        line = line_of(rank)
        lines.append(f"{_name(after.ranks[rank])} {after.ranks[rank].does}{line and f', at {line}'}: {waiting}")
    return lines


def _about(culprit: Culprit, after: Snapshot, line_of: Callable[[int], str]) -> list[str]:
    heads = headlines(culprit, after, line_of)
    if culprit.is_circle:
        made = [f"  {_wait(after, rank)}" for rank in culprit.ranks]
        return [*heads, *made, "  Let all ranks make these calls in one order."]
    direct = [rank for rank in culprit.waiting if set(after.waits[rank].missing) & set(culprit.ranks)]
    chain = [culprit.text] if len(direct) < len(culprit.waiting) else []
    advice = dict.fromkeys(_advice(after.ranks[rank]) for rank in culprit.ranks)
    return [*heads, *(f"  {line}" for line in [*advice, *(_wait(after, rank) for rank in direct[:1]), *chain])]


def _name(seen: RankSnapshot) -> str:
    return f"rank {seen.rank} (pid {seen.pid})" if seen.pid else f"rank {seen.rank}"


def _wait(after: Snapshot, rank: int) -> str:
    wait = after.waits[rank]
    return f"rank {rank} is in {wait.call} and waits for {ranks_text(wait.missing, _MOST)}"


def _advice(seen: RankSnapshot) -> str:
    if seen.gone:
        return "It will not come: the others learn that within a second, unless they are stopped themselves."
    if not seen.pid:
        return "Its process has not called unisono.init(): see what it does instead, and whether it runs at all."
    if seen.far:
        return f"Ask on its host: unisono doctor {seen.pid}"
    if seen.status.state == "T":
        return f"Let it go on with `kill -CONT {seen.pid}`."
    if seen.status.state == "t":
        return f"Process {seen.status.tracer} debugs it: let it go on there."
    return "Its stack, below, shows what it does instead."
