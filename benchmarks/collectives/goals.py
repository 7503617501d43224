"""The goals that unisono has set itself, beside what was measured."""

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import NamedTuple

from unisono.base.units import format_bytes, format_seconds

from ..reports import GLOO, INTEL_MPI, MPICH, OPEN_MPI, OURS, SHARED
from .extras import Extras
from .report import Key, Known, ratio

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


class Row(NamedTuple):
    """One goal. verdict: `pass`, `short`, `out of reach` of any engine with private tensors, or `not measured`."""

    goal: str
    target: str
    measured: str = ""
    verdict: str = "not measured"


class _Point(NamedTuple):
    """A ratio at one size that must reach `needed`, both by least times and by medians.

    bound: the ratio of an engine that only moves the bytes once, as the yardstick of the collective does.
    """

    key: Key
    needed: float
    least: float
    p50: float
    bound: float = inf

    @property
    def where(self) -> str:
        return f"{format_bytes(self.key.nbytes)}, {self.key.ranks} ranks"

    @property
    def margin(self) -> float:
        """At least 1 where the goal is reached."""
        return min(self.least, self.p50) / self.needed


def table(known: Known, extras: Extras) -> list[Row]:
    """The most important goal first."""
    sizes = sorted({key.nbytes for key in known})

    def points(least: int, most: float, factor: float, theirs: str) -> Iterator[_Point]:
        needed = {size: factor for size in sizes if least <= size <= most}
        return _points(known, needed, OURS, theirs)

    rows = [
        _row("all_reduce against Gloo, up to 64 KiB", ">= 30x", points(0, 64 * KI, 30.0, GLOO)),
        _row("all_reduce against Gloo, from 1 MiB", ">= 6x", points(MI, inf, 6.0, GLOO)),
    ]
    at, target = (
        " / ".join(each) for each in (map(format_bytes, GOAL_SIZES), (f"{x:.0f}x" for x in GOAL_SIZES.values()))
    )
    rows += [
        _row(f"{op} against Gloo at {at}", f">= {target}", _points(known, GOAL_SIZES, OURS, GLOO, op))
        for op in ("all_gather", "reduce_scatter", "broadcast", "all_to_all")
    ]
    rows += _least_call(known)
    mpi = [point for who in (OPEN_MPI, MPICH) for point in points(64 * KI, 64 * MI, 1.5, who) if point.key.ranks == 2]
    better = {point.key: point for point in sorted(mpi, key=lambda point: -point.margin)}
    both = "the better of Open MPI and MPICH, 2 ranks, 64 KiB ... 64 MiB"
    rows.append(_row(f"all_reduce against {both}", ">= 1.5x", better.values()))
    intel = [point for point in points(0, inf, 1.0, INTEL_MPI) if point.key.ranks == 2]
    rows.append(_row("all_reduce against Intel MPI, 2 ranks", ">= 1x", intel))
    yardsticks = ("floor", 0.8, "one read-modify-write pass"), ("memcpy", 1.0, "a memcpy of the tensor")
    for yardstick, factor, words in yardsticks:
        needed = {size: factor for size in sizes if MI <= size <= 64 * MI}
        goal = f"zero copy all_reduce, 2 ranks, 1 MiB ... 64 MiB, against {words}"
        rows.append(_row(goal, f">= {factor:g}x", _points(known, needed, SHARED, yardstick, ranks=2)))
    half = [key for key in known if key[:2] == ("all_reduce", "bfloat16") and key.contender == OURS]
    halves = [(key, ratio(known, key, key._replace(dtype="float32"))) for key in half]
    goal = "bfloat16 all_reduce against float32 of as many bytes"
    slow = [_Point(key, 1 / 1.3, *found) for key, found in halves if found]
    return [*rows, _row(goal, ">= 0.77x (at most 1.3x its time)", slow), *_others(extras)]


def _row(goal: str, target: str, points: Iterable[_Point]) -> Row:
    points = list(points)
    if not points:
        return Row(goal, target)
    worst, missed = min(points, key=lambda point: point.margin), [point for point in points if point.margin < 1]
    text = f"{worst.least:.3g}x by least times, {worst.p50:.3g}x by medians at {worst.where}"
    if len(points) > 1:
        sizes = sorted(point.key.nbytes for point in points)
        ranks = " and ".join(map(str, sorted({point.key.ranks for point in points})))
        span = f"{format_bytes(sizes[0])} ... {format_bytes(sizes[-1])}, {ranks} ranks"
        text = f"reached at {len(points) - len(missed)} of {len(points)} ({span}); worst: {text}"
    beyond = [point for point in missed if point.bound < point.needed]
    for point in beyond:
        text += f"; at {point.where} {_YARDSTICKS[point.key.op][1]} would reach {point.bound:.3g}x"
    return Row(goal, target, text, "pass" if not missed else "out of reach" if len(beyond) == len(missed) else "short")


def _points(
    known: Known, needed: Mapping[int, float], ours: str, theirs: str, op: str = "all_reduce", ranks: int = 0
) -> Iterator[_Point]:
    """A point for each size, of those in `needed`, at which both were measured. theirs: a contender or a yardstick."""
    for key in known:
        if key[:2] == (op, "float32") and key.contender == ours and key.nbytes in needed and ranks in (0, key.ranks):
            peer = key._replace(op=theirs if theirs in ("floor", "memcpy") else op, contender=theirs)
            if found := ratio(known, key, peer):
                yield _Point(key, needed[key.nbytes], *found, _bound(known, key, peer))


def _bound(known: Known, key: Key, peer: Key) -> float:
    """The peer's least time over that of the yardstick; infinite if there is none, or it was not measured."""
    if key.op not in _YARDSTICKS or key.contender == SHARED:
        return inf
    yardstick, _ = _YARDSTICKS[key.op]
    found = ratio(known, key._replace(op=yardstick, contender=yardstick), peer)
    return found[0] if found else inf


def _reached(goal: str, target: str, measured: str, reached: bool) -> Row:
    return Row(goal, target, measured, "pass" if reached else "short")


def _least_call(known: Known) -> Iterator[Row]:
    key = Key("all_reduce", "float32", 2, 8, OURS)
    goal, target, ours, theirs = "all_reduce of 8 bytes, 2 ranks", "median <= 1.5", known.get(key), None
    row = Row(goal, f"{target} µs")
    if ours:
        text = f"median {format_seconds(ours.p50)}, least {format_seconds(ours.least)}"
        text += f" (barrier {format_seconds(ours.barrier_s)})"
        row, theirs = _reached(*row[:2], text, ours.p50 <= 1.5e-6), known.get(key._replace(contender=OPEN_MPI))
    yield row
    row = Row(f"{goal}, against mpi4py and Open MPI", f"{target}x")
    if ours and theirs:
        text = f"{ours.p50 / theirs.p50:.3g}x by medians, {ours.least / theirs.least:.3g}x by least times"
        text += f" (Open MPI: median {format_seconds(theirs.p50)})"
        row = _reached(*row[:2], text, ours.p50 <= 1.5 * theirs.p50)
    yield row


def _others(extras: Extras) -> Iterator[Row]:
    for name, goal, limit in (
        ("first_call", "first call after install, with compilation", 20.0),
        ("later", "start of a later process, over importing torch, in processor time", 0.1),
        ("run_ratio", "run(int, ranks=4) against import torch", 1.3),
    ):
        target, took = f"<= {format_seconds(limit)}", extras.get(name)
        if name == "run_ratio":
            target = f"<= {limit:g}x its time"
        if took is None:
            yield Row(goal, target)
        else:
            yield _reached(goal, target, f"{took:.3g}x" if name == "run_ratio" else format_seconds(took), took <= limit)
