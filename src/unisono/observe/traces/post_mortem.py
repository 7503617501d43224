"""What is made of the calls of ranks that have ended without a word: the trace, and their last calls as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...engine.logs.clock import Clock
from .host_clocks import aligned
from .last_calls import last_calls_text
from .message_pairs import RankMessage
from .recorded import Recorded, recorded
from .recording import export
from .tracks import Track

_MOST_MESSAGES = 20


def finish(folder: str, job: str, ended: Mapping[str, str]) -> None:
    """All ranks of this host have ended. ended: the files with their notes, and how each has ended, in words.

    Once all hosts have got here, the trace is made, and FOLDER/JOB.txt with the last calls.
    """
    now = Clock.now()
    for path, words in ended.items():
        with suppress(OSError), open(path, "r+") as file:
            lines = file.read().splitlines(keepends=True)
            if not any(line.startswith(('["end"', '["died"')) for line in lines):
                begin = "" if not lines or lines[-1].endswith("\n") else "\n"
                file.write(f"{begin}{json.dumps(['died', {'clock': now, 'words': words}])}\n")
    place = Path(folder)
    if export([place], job, only_if_ended=True):
        parts = recorded([place], job)
        if text := last_words(aligned(parts)[0]):
            (place / f"{job}.txt").write_text(f"{text}\n")


def last_words(parts: Sequence[Recorded]) -> str:
    """Which ranks have ended without a word, and the last calls of all groups, by number; empty if none has."""
    died = [part for part in parts if part.died]
    if not died:
        return ""
    lines = [f"rank {part.rank} (pid {part.pid} on {part.host_name}) {part.died}" for part in died]
    groups: dict[tuple[int, int, str], list[Track]] = {}
    for part in parts:
        for track in part.tracks:
            reached = (track.latest.number, not track.latest.left_ns) if track.latest else (0, False)
            groups.setdefault(track.key, []).append(track._replace(reached=reached))
    texts = [last_calls_text(some, max(part.ended_ns for part in died)) for some in groups.values()]
    waiting = [one for part in parts for one in part.messages if not one.said.left_ns]
    if waiting:
        texts.append("\n".join(["messages that were waited for:", *map(_waiting_text, waiting[-_MOST_MESSAGES:])]))
    return "\n\n".join(["\n".join(lines), *filter(None, texts)])


def _waiting_text(one: RankMessage) -> str:
    return f"  rank {one.rank}: {one.text}, tag {one.said.tag}, in group {one.key[-1]!r}"
