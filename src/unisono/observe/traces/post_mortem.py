"""What is told of ranks that have ended without a word: the last calls of all, as text."""

from __future__ import annotations

from collections.abc import Sequence

from .last_calls import last_calls_text
from .message_pairs import RankMessage
from .recorded import Recorded
from .tracks import Track

_MOST_MESSAGES = 20


def last_words(parts: Sequence[Recorded]) -> str:
    """Which ranks have ended without a word, and the last calls of all groups, by number; empty if none has."""
    silent = [part for part in parts if not part.ended and not part.goes_on]
    if not silent:
        return ""
    said = {False: "has ended without a word", None: "has not said that it ends"}
    lines = [f"rank {part.rank} (pid {part.pid} on {part.host_name}) {said[part.goes_on]}" for part in silent]
    groups: dict[tuple[int, int, str], list[Track]] = {}
    for part in parts:
        for track in part.tracks:
            reached = (track.latest.number, not track.latest.left_ns) if track.latest else (0, False)
            groups.setdefault(track.key, []).append(track._replace(reached=reached))
    texts = [last_calls_text(some) for some in groups.values()]
    waiting = [one for part in parts for one in part.messages if not one.said.left_ns]
    if waiting:
        texts.append("\n".join(["messages that were waited for:", *map(_waiting_text, waiting[-_MOST_MESSAGES:])]))
    return "\n\n".join(["\n".join(lines), *filter(None, texts)])


def _waiting_text(one: RankMessage) -> str:
    return f"  rank {one.rank}: {one.text}, tag {one.said.tag}, in group {one.key[-1]!r}"
