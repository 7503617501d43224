"""Read the recordings of ranks from disk; see `recording`."""

from __future__ import annotations

import json
import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ...base.records import CallRecord
from ...engine.clock import Clock
from ...engine.logs.call_log import CallLog
from ...engine.logs.message_log import LoggedMessage, MessageLog
from ...engine.logs.plan_registry import PlanNote, ProgramRow
from ...engine.logs.row_log import RowLog
from ...engine.process.alive import start_ticks
from .tracks import MessageGroup, RankCall, RankMessage, RankRow, Track, calls_of, rank_messages, rows_of


class Recorded(NamedTuple):
    """The recording of one process, a rank of `size`.

    ticks: when the process started.
    unix_ns: what to add to its monotonic times for calendar times.
    host: the number of its host in the job.
    machine: see `this_machine`.
    ended: the process has ended its recording.
    """

    job: str
    rank: int
    size: int
    host: int
    host_name: str
    machine: str
    pid: int
    ticks: int
    command: str
    unix_ns: int
    ended: bool
    tracks: Sequence[Track]
    messages: Sequence[RankMessage] = ()

    @property
    def goes_on(self) -> bool | None:
        """May the process record more? None: this is not known, as it is of another machine."""
        if self.ended:
            return False
        return start_ticks(self.pid) == self.ticks if self.machine == this_machine() else None


@cache
def this_machine() -> str:
    """A name that is equal for processes with one clock and one numbering of processes."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


def jobs_in(*folders: Path) -> Counter[str]:
    """The jobs with recordings in these folders, the latest last, with their numbers of processes."""
    files = sorted(_files(folders, "*"), key=lambda path: path.stat().st_mtime)
    return Counter(path.name.partition(".")[0] for path in files)


def _files(folders: Sequence[Path], job: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((folder / "calls").glob(f"{job}.rank-*.notes"))


def recorded(folders: Sequence[Path], job: str) -> list[Recorded]:
    """The recordings of all ranks of a job, in one folder, or each host's in its own."""
    said = [(path.parent, lines) for path in _files(folders, job) if (lines := _said(path))["head"]]
    clocks: dict[str, list[Clock]] = {}
    for _, lines in said:
        moments = clocks.setdefault(lines["head"][0]["machine"], [])
        moments += [Clock(*line["clock"]) for kind in ("head", "end") for line in lines[kind]]
    if this_machine() in clocks and not all(lines["end"] for _, lines in said):
        clocks[this_machine()].append(Clock.now())
    # The longest time between two moments of a machine gives the rate of its clock best.
    rates = {machine: (min(moments), max(moments)) for machine, moments in clocks.items()}
    return [_part(place, lines, *rates[lines["head"][0]["machine"]]) for place, lines in said]


def _said(path: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in ("head", "group", "note", "messages", "end")}
    for line in path.read_text().splitlines():
        with suppress(ValueError, TypeError, KeyError):  # the last line, if the process has been killed
            kind, what = json.loads(line)
            found[kind].append(what)
    return found


def _part(place: Path, lines: dict[str, list[dict[str, Any]]], first: Clock, last: Clock) -> Recorded:
    head = lines["head"][0]
    notes = {note["number"]: _note(note) for note in lines["note"]}
    tracks, groups = [], []
    for group in lines["group"]:
        calls = _calls(_beside(place, group["log"]), first, last, notes.get)
        gid = group["gid"]
        which = (group["name"], 0 if gid else group["start"], head["rank"], group["member"], group["size"])
        rows = _rows(_beside(place, group["rows"]), first, last, calls) if group.get("rows") else {}
        track = Track(*which, calls, over=gid or head["host"], rows=rows, members=group["members"])
        tracks.append(track)
        groups.append(MessageGroup(group["start"], group["since_ns"], group["members"], track.key))
    said = {name: value for name, value in head.items() if name != "clock"}
    logged = [one for line in lines["messages"] for one in _messages(_beside(place, line["log"]))]
    messages = rank_messages(head["rank"], logged, groups)
    return Recorded(**said, ended=bool(lines["end"]), tracks=tracks, messages=messages)


def _beside(place: Path, name: str) -> Path:
    """A file in this folder, whatever the notes say: another user may have written them."""
    return place / Path(name).name


def _messages(path: Path) -> list[LoggedMessage]:
    with suppress(OSError, ValueError), path.open("rb") as file:
        return MessageLog(memoryview(file.read())).read()
    return []


def _note(note: dict[str, Any]) -> PlanNote:
    record = CallRecord(*note["record"])
    counts = None if record.counts is None else tuple(record.counts)
    rows = tuple(ProgramRow(round_, op, *map(tuple, ranks)) for round_, op, *ranks in note.get("rows", ()))
    return PlanNote(record._replace(counts=counts), note["nbytes"], rows)


def _rows(path: Path, first: Clock, last: Clock, calls: Sequence[RankCall]) -> dict[int, list[RankRow]]:
    with suppress(OSError, ValueError):
        return rows_of(RowLog(memoryview(path.read_bytes())), first, last, calls)
    return {}


def _calls(path: Path, first: Clock, last: Clock, what: Callable[[int], PlanNote | None]) -> list[RankCall]:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
            log = CallLog(memoryview(bytes(memory)))
    except (OSError, ValueError):
        return []
    return calls_of(log, first, last, what)
