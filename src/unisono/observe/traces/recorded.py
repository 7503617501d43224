"""Read the recordings of ranks from disk (see `recording`), and bring recordings of several hosts to one clock.

The difference of two clocks is found in the calls themselves. No rank leaves a call over several hosts before all ranks
have entered it. So each call that two hosts made together bounds the difference of their clocks from both sides, as an
exchange of time stamps would. This needs no messages, and works for ranks that were killed. The difference counts as
constant: clocks that are set by NTP drift apart by less than a millisecond in ten minutes.
"""

import json
import mmap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from ...base.python import tell
from ...base.records import CallRecord
from ...engine.clock import Clock
from ...engine.logs.plan_registry import PlanNote
from ...engine.logs.rank_logs import CallLog, log_bytes
from .tracks import RankCall, Track, by_group, by_number, calls_of


class Recorded(NamedTuple):
    """The recording of one process, a rank of `size`.

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
    command: str
    unix_ns: int
    ended: bool
    tracks: Sequence[Track]


@cache
def this_machine() -> str:
    """A name that is equal for processes with one clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def jobs_in(*folders: Path) -> Counter[str]:
    """The jobs with recordings in these folders, the latest last, with their numbers of processes."""
    files = sorted(_files(folders, "*"), key=lambda path: path.stat().st_mtime)
    return Counter(path.name.partition(".")[0] for path in files)


def _files(folders: Sequence[Path], job: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((folder / "calls").glob(f"{job}.rank-*.notes"))


def recorded(folders: Sequence[Path], job: str) -> list[Recorded]:
    """The recordings of all ranks of a job, in one folder, or each host's in its own. Other files are skipped, with a
    warning.
    """
    said = []
    for path in _files(folders, job):
        lines = _read(path)
        if lines["head"]:
            said.append((path.parent, lines))
        else:
            tell(f"unisono: {path} is not a recording of a rank, or has lost its head: skipped\n")
    clocks: dict[str, list[Clock]] = {}
    for _, lines in said:
        moments = clocks.setdefault(lines["head"][0]["machine"], [])
        moments += [line["clock"] for kind in ("head", "end") for line in lines[kind]]
    if this_machine() in clocks and not all(lines["end"] for _, lines in said):
        clocks[this_machine()].append(Clock.now())
    # The longest time between two moments of a machine gives the rate of its clock best.
    rates = {machine: (min(moments), max(moments)) for machine, moments in clocks.items()}
    return [_part(place, lines, *rates[lines["head"][0]["machine"]]) for place, lines in said]


_KINDS: dict[str, dict[str, type]] = {
    "head": {"clock": list, **{name: type_ for name, type_ in get_type_hints(Recorded).items() if type_ in (str, int)}},
    "group": {"name": str, "start": int, "gid": int, "member": int, "size": int, "log": str},
    "note": {"number": int, "record": list, "nbytes": int},
    "end": {"clock": list},
}  # fmt: skip
"""The kinds of lines in a file of notes, each with the types of its fields."""

_MOST_RANKS = 1 << 20


def _read(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The lines of a file of notes, by kind. Others are left out: the last one, if the process has been killed."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _KINDS}
    with suppress(OSError):
        for line in path.read_text("utf-8", errors="replace").splitlines():
            with suppress(ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
                kind, what = json.loads(line)
                found[kind].append(_checked(kind, what))
    return found


def _checked(kind: str, what: dict[str, Any]) -> dict[str, Any]:
    """A line of notes, with its clock and its record as such. Raises an error for what no rank writes."""
    if any(type(what[name]) is not type_ for name, type_ in _KINDS[kind].items()):
        raise TypeError(kind)
    if "clock" in what:
        what["clock"] = Clock(*map(int, what["clock"]))
    if "size" in what and not 0 <= what["rank" if kind == "head" else "member"] < what["size"] <= _MOST_RANKS:
        raise ValueError(what["size"])
    return {**what, "note": _note(what)} if kind == "note" else what


def _part(place: Path, lines: dict[str, list[dict[str, Any]]], first: Clock, last: Clock) -> Recorded:
    head = lines["head"][0]
    notes = {note["number"]: note["note"] for note in lines["note"]}
    tracks = []
    for group in lines["group"]:
        log = _log(place, group["log"])
        calls = calls_of(log, first, last, notes.get) if log else []
        gid = group["gid"]
        which = (group["name"], 0 if gid else group["start"], head["rank"], group["member"], group["size"])
        tracks.append(Track(*which, calls, over=gid or head["host"]))
    said = {name: head[name] for name in _KINDS["head"] if name != "clock"}
    return Recorded(**said, ended=bool(lines["end"]), tracks=tracks)


def _log(place: Path, name: str) -> CallLog | None:
    """A log that its rank may be writing: it finds out what is half written, which it would not in a copy.

    name: a file in this folder, whatever the notes say: another user may have written them. None, with a warning, if it
    is missing or cut.
    """
    path = place / Path(name).name
    with suppress(OSError, ValueError), path.open("rb") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        if len(memory) % log_bytes(1) == 0:
            return CallLog(memory)
    tell(f"unisono: {path} is missing, or is cut: what it logged is not in the trace\n")
    return None


def _note(note: Mapping[str, Any]) -> PlanNote:
    """Raises ValueError, among others, for what no rank writes."""
    return PlanNote(CallRecord.unpack(json.dumps(note["record"]).encode()), note["nbytes"])


class HostClock(NamedTuple):
    """The clock of a host, compared with the first host's clock.

    ahead_ns: how far it is ahead.
    error_ns: how far this may be wrong, by the calls that both hosts made; None: there were no such calls, so the
    difference is taken from the hosts' calendar clocks.
    """

    host: int
    name: str
    ahead_ns: int
    error_ns: int | None


def aligned(parts: Sequence[Recorded]) -> tuple[list[Recorded], list[HostClock]]:
    """The recordings in the time of the first host, and the clocks of the other hosts."""
    hosts = {part.host: part for part in reversed(parts)}
    first, *others = sorted(hosts)
    clocks, shifts = [], {}
    for host in others:
        shift, error_ns = hosts[host].unix_ns - hosts[first].unix_ns, None
        if bounds := list(_bounds(parts, first, host)):
            least, most = max(least for least, _ in bounds), min(most for _, most in bounds)
            shift, error_ns = (least + most) // 2, (abs(most - least) + 1) // 2
        shifts[host] = shift
        clocks.append(HostClock(host, hosts[host].host_name, -shift, error_ns))
    return [_shifted(part, shifts[part.host]) if part.host in shifts else part for part in parts], clocks


def _bounds(parts: Sequence[Recorded], one: int, other: int) -> Iterator[tuple[int, int]]:
    """The least and the most to add to the other host's times, by each call that both hosts have made."""
    on = {part.rank: part.host for part in parts}
    both = [track for part in parts if part.host in (one, other) for track in part.tracks]
    for some in by_group(both).values():
        calls = by_number(some)
        # The last call of a rank may have failed: then the rank left it before all ranks had entered.
        end = min(track.latest.number if track.latest else 0 for track in some)
        for number in filter(end.__gt__, sorted(calls)):
            sides: Mapping[int, list[RankCall]] = {one: [], other: []}
            for rank, call in calls[number].items():
                sides[on[rank]].append(call)
            if all(sides.values()) and _is_one(calls[number]):
                came = {host: max(call.entered_ns for call in mine) for host, mine in sides.items()}
                left = {host: min(call.left_ns for call in mine) for host, mine in sides.items()}
                yield came[one] - left[other], left[one] - came[other]


def _is_one(calls: Mapping[int, RankCall]) -> bool:
    """Have all ranks made the same call, and left it?"""
    records = {call.what and call.what.record._replace(where="") for call in calls.values()}
    return len(records) == 1 and None not in records and all(call.left_ns for call in calls.values())


def _shifted(part: Recorded, shift: int) -> Recorded:
    def moved(call: RankCall) -> RankCall:
        return call._replace(entered_ns=call.entered_ns + shift, left_ns=call.left_ns and call.left_ns + shift)

    tracks = [track._replace(calls=[*map(moved, track.calls)]) for track in part.tracks]
    return part._replace(tracks=tracks)
