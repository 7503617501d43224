"""A trace as a file that Perfetto and chrome://tracing open: JSON in the Trace Event Format.

Ranks are processes, host by host; their groups are threads; calls are slices. Arrows lead from the slices of ranks that
have waited to the slice of the rank that came late. All times are of the first host's clock. The file says how far the
clocks of the other hosts can be wrong.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ...base.units import format_bytes
from .recorded import HostClock, Recorded
from .tracks import RankCall, Track, by_group, by_number, waits_for_last

_SHOWN_NS = 20_000
"""Ranks always wait a little for each other. An arrow shows longer waits than this."""
_AT_ONCE = 1000
"""How many events become text together: one by one they take three times as long."""


def write_trace(path: Path, parts: Sequence[Recorded], clocks: Sequence[HostClock] = ()) -> None:
    """Write the trace of a job, in the time of its first host. A reader finds the whole file, or the earlier one."""
    part, first = path.with_suffix(".part"), min(parts, key=lambda part: part.host)
    every = events(parts)
    about: dict[str, Any] = {
        "job": first.job,
        "command": first.command,
        "begins_unix_ns": first.unix_ns + _begin(parts),
    }
    about["clocks"] = [clock._asdict() for clock in clocks]
    try:
        with part.open("w") as file:
            file.write(f'{{"displayTimeUnit": "ns", "otherData": {json.dumps(about)}, "traceEvents": [\n')
            for k, some in enumerate(iter(lambda: [*islice(every, _AT_ONCE)], [])):
                file.write((",\n" if k else "") + json.dumps(some)[1:-1])
            file.write("\n]}\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _begin(parts: Sequence[Recorded]) -> int:
    return min((track.calls[0].entered_ns for part in parts for track in part.tracks if track.calls), default=0)


def events(parts: Sequence[Recorded]) -> Iterator[dict[str, Any]]:
    """The events of a trace. Times are in microseconds from the first call on."""
    begin = _begin(parts)
    several = len({part.host for part in parts}) > 1
    parts = sorted(parts, key=lambda part: (part.host, part.rank))
    for place, part in enumerate(parts):
        where = f"{part.host_name}, " if several else ""
        named = {"name": f"{where}rank {part.rank} (pid {part.pid})"}
        yield {"ph": "M", "name": "process_name", "pid": part.rank, "tid": 0, "args": named}
        if several:
            yield {"ph": "M", "name": "process_labels", "pid": part.rank, "tid": 0, "args": {"labels": part.host_name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": part.rank, "tid": 0, "args": {"sort_index": place}}
    groups = by_group(track for part in parts for track in part.tracks)
    arrow, known = 0, dict[tuple[int, int], _Words]()
    for tid, some in enumerate(groups.values()):
        for track in some:
            named = {"name": f"group {track.group}"}
            yield {"ph": "M", "name": "thread_name", "pid": track.rank, "tid": tid, "args": named}
        members = {track.rank: track for track in some}
        for calls in by_number(some).values():
            late, waits = waits_for_last(calls)
            came_at = (calls[late].entered_ns - begin) / 1e3
            for rank, call in calls.items():
                key = id(call.what), members[rank].size
                if key not in known:
                    known[key] = _words(members[rank], call)
                name, args = known[key]
                args, took_ns = {"number": call.number, **args}, max(0, call.left_ns - call.entered_ns)
                if call.background:
                    args["background"] = True
                if waits[rank] and took_ns:
                    args |= {"waited_for": late, "waited_us": min(waits[rank], took_ns) / 1e3}
                if not call.left_ns:
                    args["unfinished"] = True
                at = {"pid": rank, "tid": tid, "ts": (call.entered_ns - begin) / 1e3}
                yield {"ph": "X", "cat": "call", "name": name, **at, "dur": took_ns / 1e3, "args": args}
                if waits[rank] >= _SHOWN_NS and call.left_ns:
                    arrow += 1
                    flow = {"cat": "late", "name": "waits for", "id": arrow}
                    yield {**flow, "ph": "s", **at}
                    yield {**flow, "ph": "f", "bp": "e", "pid": late, "tid": tid, "ts": came_at}


_Words = tuple[str, dict[str, Any]]
"""What all calls by one note have in common: the name of their slices, and arguments."""


def _words(track: Track, call: RankCall) -> _Words:
    if call.what is None:
        return "a call", {}
    record, nbytes = call.what.record, track.nbytes(call)
    name = record.collective if record.collective == "barrier" else f"{record.collective} {format_bytes(nbytes)}"
    args = {"call": str(record), "bytes": nbytes, "algorithm": record.algorithm, "lowering": record.lowering}
    return name, {**args, "line": record.where}
