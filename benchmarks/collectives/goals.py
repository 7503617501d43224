"""The goals that unisono has set itself, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from unisono.base.units import format_bytes, format_seconds

from ..reports import GLOO, MPICH, OPEN_MPI, OURS, SHARED
from .extras import Extras
from .figures import Figure, Key, ratio

KI, MI = 1 << 10, 1 << 20

GOAL_SIZES = {64 * KI: 15.0, MI: 4.0, 16 * MI: 3.0}
"""Bytes of the other collectives, and how many times faster than Gloo they should be there."""


_MEMCPY = "memcpy", "a memcpy of the bytes alone"
_YARDSTICKS = {
    "all_reduce": ("floor", "one read-modify-write pass alone"),
    "broadcast": _MEMCPY,
    "all_gather": _MEMCPY,
    "all_to_all": _MEMCPY,
}
"""What every engine does at least with private tensors, and in words: it reads and writes the larger tensor once."""


@dataclass(frozen=True)
class Row:
    """One goal. `reached` is None where nothing was measured."""

    goal: str
    target: str
    measured: str
    reached: bool | None
    in_reach: bool = True
    """Could any engine reach it with private tensors?"""

    @property
    def verdict(self) -> str:
        """`pass`, `short`, `out of reach` or `not measured`."""
        if self.reached is None:
            return "not measured"
        return "pass" if self.reached else "short" if self.in_reach else "out of reach"


@dataclass(frozen=True)
class _Point:
    """A ratio at one size that must reach `needed`, both by least times and by medians."""

    key: Key
    needed: float
    least: float
    p50: float
    bound: float | None = None
    """The ratio of an engine that only moves the bytes once, as the yardstick of the collective does."""

    @property
    def in_reach(self) -> bool:
        """Is the goal not beyond the bound?"""
        return self.bound is None or self.bound >= self.needed

    @property
    def where(self) -> str:
        """Size and number of ranks, in words."""
        return f"{format_bytes(self.key.nbytes)}, {self.key.ranks} ranks"

    @property
    def margin(self) -> float:
        """At least 1 where the goal is reached."""
        return min(self.least, self.p50) / self.needed


def table(known: Mapping[Key, Figure], extras: Extras) -> list[Row]:
    """One row per goal, the most important first."""
    return [
        *_against_gloo(known),
        *_small(known),
        _against_mpi(known),
        *_zero_copy(known),
        _half_precision(known),
        *_others(extras),
    ]


def _row(goal: str, target: str, points: Iterable[_Point]) -> Row:
    points = list(points)
    if not points:
        return Row(goal, target, "", None)
    worst, met = min(points, key=lambda point: point.margin), sum(point.margin >= 1 for point in points)
    text = f"{worst.least:.3g}x by least times, {worst.p50:.3g}x by medians at {worst.where}"
    if len(points) > 1:
        sizes = sorted(point.key.nbytes for point in points)
        ranks = " and ".join(map(str, sorted({point.key.ranks for point in points})))
        span = f"{format_bytes(sizes[0])} ... {format_bytes(sizes[-1])}, {ranks} ranks"
        text = f"reached at {met} of {len(points)} ({span}); worst: {text}"
    missed = [point for point in points if point.margin < 1]
    for point in missed:
        if not point.in_reach:
            text += f"; at {point.where} {_YARDSTICKS[point.key.op][1]} would reach {point.bound:.3g}x"
    return Row(goal, target, text, not missed, not missed or any(point.in_reach for point in missed))


def _points(
    known: Mapping[Key, Figure], ours: str, theirs: str, op: str, needed: Mapping[int, float]
) -> Iterator[_Point]:
    """A point for each size, of those in `needed`, at which both were measured."""
    for key in known:
        enough = needed.get(key.nbytes)
        if key[:2] == (op, "float32") and key.contender == ours and enough:
            found = ratio(known, key, key._replace(contender=theirs))
            if found:
                yield _Point(key, enough, *found, _bound(known, key, theirs))


def _bound(known: Mapping[Key, Figure], key: Key, theirs: str) -> float | None:
    """The peer's least time over that of the yardstick; None if the collective has none, or it was not measured."""
    if key.op not in _YARDSTICKS or key.contender == SHARED:
        return None
    yardstick, _ = _YARDSTICKS[key.op]
    found = ratio(known, key._replace(op=yardstick, contender=yardstick), key._replace(contender=theirs))
    return found and found[0]


def _against_gloo(known: Mapping[Key, Figure]) -> list[Row]:
    sizes = {key.nbytes for key in known}
    small = _points(known, OURS, GLOO, "all_reduce", {size: 30.0 for size in sizes if size <= 64 * KI})
    large = _points(known, OURS, GLOO, "all_reduce", {size: 6.0 for size in sizes if size >= MI})
    needed = " / ".join(f"{factor:.0f}x" for factor in GOAL_SIZES.values())
    return [
        _row("all_reduce against Gloo, up to 64 KiB", ">= 30x", small),
        _row("all_reduce against Gloo, from 1 MiB", ">= 6x", large),
        *(
            _row(
                f"{op} against Gloo at {' / '.join(map(format_bytes, GOAL_SIZES))}",
                f">= {needed}",
                _points(known, OURS, GLOO, op, GOAL_SIZES),
            )
            for op in ("all_gather", "reduce_scatter", "broadcast", "all_to_all")
        ),
    ]


def _small(known: Mapping[Key, Figure]) -> list[Row]:
    goal = "all_reduce of 8 bytes, 2 ranks"
    key = Key("all_reduce", "float32", 2, 8, OURS)
    ours, theirs = known.get(key), known.get(key._replace(contender=OPEN_MPI))
    against = "against mpi4py and Open MPI"
    rows = [Row(goal, "median <= 1.5 µs", "", None), Row(f"{goal}, {against}", "median <= 1.5x", "", None)]
    if ours:
        text = f"median {format_seconds(ours.p50)}, least {format_seconds(ours.least)}"
        text += f" (barrier {format_seconds(ours.barrier_s)})"
        rows[0] = Row(goal, rows[0].target, text, ours.p50 <= 1.5e-6)
    if ours and theirs:
        text = f"{ours.p50 / theirs.p50:.3g}x by medians, {ours.least / theirs.least:.3g}x by least times"
        text += f" (Open MPI: median {format_seconds(theirs.p50)})"
        rows[1] = Row(rows[1].goal, rows[1].target, text, ours.p50 <= 1.5 * theirs.p50)
    return rows


def _against_mpi(known: Mapping[Key, Figure]) -> Row:
    points: dict[Key, _Point] = {}
    for peer in (OPEN_MPI, MPICH):
        for point in _points(known, OURS, peer, "all_reduce", dict.fromkeys(_sizes(known, 64 * KI), 1.5)):
            if point.key.ranks == 2:
                points[point.key] = min(point, points.get(point.key, point), key=lambda point: point.margin)
    name = "all_reduce against the better of Open MPI and MPICH, 2 ranks, 64 KiB ... 64 MiB"
    return _row(name, ">= 1.5x", points.values())


def _zero_copy(known: Mapping[Key, Figure]) -> list[Row]:
    floor: list[_Point] = []
    copy: list[_Point] = []
    for nbytes in _sizes(known, MI):
        key = Key("all_reduce", "float32", 2, nbytes, SHARED)
        for yardstick, needed, points in (("floor", 0.8, floor), ("memcpy", 1.0, copy)):
            found = ratio(known, key, key._replace(op=yardstick, contender=yardstick))
            if found:
                points.append(_Point(key, needed, *found))
    goal = "zero copy all_reduce, 2 ranks, 1 MiB ... 64 MiB"
    return [
        _row(f"{goal}, against one read-modify-write pass", ">= 0.8x", floor),
        _row(f"{goal}, against a memcpy of the tensor", ">= 1x", copy),
    ]


def _half_precision(known: Mapping[Key, Figure]) -> Row:
    points = []
    for key in known:
        if key[:2] == ("all_reduce", "bfloat16") and key.contender == OURS:
            found = ratio(known, key, key._replace(dtype="float32"))
            if found:
                points.append(_Point(key, 1 / 1.3, *found))
    return _row("bfloat16 all_reduce against float32 of as many bytes", ">= 0.77x (at most 1.3x its time)", points)


def _others(extras: Extras) -> list[Row]:
    def at_most(goal: str, limit_s: float, measured_s: float | None, note: str = "") -> Row:
        target = f"<= {format_seconds(limit_s)}"
        if measured_s is None:
            return Row(goal, target, note, None)
        return Row(goal, target, " ".join(filter(None, [format_seconds(measured_s), note])), measured_s <= limit_s)

    return [
        at_most("proof of a catalogue schedule, up to 16 ranks", 5e-3, extras.proof_s, extras.proof_name),
        at_most("proof of the ring all_reduce at 65,536 ranks", 5.0, extras.ring_s),
        at_most("first call after install, with compilation", 20.0, extras.first_call_s),
        at_most("start of a later process, over importing torch, in processor time", 0.1, extras.later_s),
        *([] if extras.run_ratio is None else [_run(extras.run_ratio)]),
    ]


def _run(ratio: float) -> Row:
    return Row("run(int, ranks=4) against import torch", "<= 1.3x its time", f"{ratio:.3g}x", ratio <= 1.3)


def _sizes(known: Mapping[Key, Figure], least: int) -> list[int]:
    return sorted({key.nbytes for key in known if least <= key.nbytes <= 64 * MI})
