"""The last calls of a group as text, aligned by number, also for ranks that were killed."""

import time
from collections.abc import Mapping, Sequence

from ...base.units import format_seconds, ranks_text
from ...engine.memory.arena import Arena
from .recorded import Recorded
from .tracks import RankCall, Track, by_group, by_number, tracks

_CALLS, _RANKS = 5, 8


def last_calls(arena: Arena, start: int) -> str:
    """The last calls of the group whose memory begins at `start`, of the ranks on this host."""
    return last_calls_text([track for track in tracks(arena) if track.start == start], time.monotonic_ns())


def last_calls_text(some: Sequence[Track], now_ns: int | None = None) -> str:
    """The last calls of one group's tracks; empty if there are none. now_ns: None for a recording of the past."""
    calls = by_number(some)
    if not calls:
        return ""
    reached = {track.rank: track.latest.number if track.latest else 0 for track in some}
    lines = [f"last calls of group {some[0].group!r}, by number:"]
    for number in sorted(calls)[-_CALLS:]:
        lines += [f"  #{number} {line}" for line in _lines(number, calls[number], reached, now_ns)]
    return "\n".join(lines)


def _lines(number: int, calls: Mapping[int, RankCall], reached: Mapping[int, int], now_ns: int | None) -> list[str]:
    """A line for each different call that ranks have made with this number; a correct program has one line."""
    alike: dict[str, list[int]] = {}
    for rank in sorted(calls):
        alike.setdefault(_text(calls[rank]), []).append(rank)
    missing = sorted(rank for rank, last in reached.items() if last < number)
    lines = [f"{text}: {'; '.join(_said(calls, ranks, now_ns))}" for text, ranks in alike.items()]
    if missing:
        lines[-1] += f"; not entered by {ranks_text(missing, _RANKS)}"
    return lines


def _text(call: RankCall) -> str:
    where = call.what.record.where if call.what else ""
    return f"{call.text} (first at {where})" if where else call.text


def _said(calls: Mapping[int, RankCall], ranks: Sequence[int], now_ns: int | None) -> list[str]:
    inside = [rank for rank in ranks if not calls[rank].left_ns]
    done = [rank for rank in ranks if calls[rank].left_ns]
    said = []
    if done:
        most_ns = max(calls[rank].left_ns - calls[rank].entered_ns for rank in done)
        said.append(f"{ranks_text(done, _RANKS)} left it, after {format_seconds(most_ns / 1e9)} at most")
    if inside:
        since_ns = min(calls[rank].entered_ns for rank in inside)
        how_long = "" if now_ns is None else f", for {format_seconds((now_ns - since_ns) / 1e9)} at most"
        said.append(f"{ranks_text(inside, _RANKS)} in it{how_long}")
    if len(ranks) > 1:
        last = max(ranks, key=lambda rank: calls[rank].entered_ns)
        first_ns = min(calls[rank].entered_ns for rank in ranks)
        said.append(
            f"rank {last} came last, {format_seconds((calls[last].entered_ns - first_ns) / 1e9)} after the first"
        )
    return said


def last_words(parts: "Sequence[Recorded]") -> str:
    """Which ranks have not ended their recording, and the last calls of all groups; empty if all have."""
    silent = [part for part in parts if not part.ended]
    if not silent:
        return ""
    what = "has not ended its recording: it was killed, or still runs"
    lines = [f"rank {part.rank} (pid {part.pid} on {part.host_name}) {what}" for part in silent]
    groups = by_group(track for part in parts for track in part.tracks)
    texts = [last_calls_text(some) for some in groups.values()]
    return "\n\n".join(["\n".join(lines), *filter(None, texts)])
