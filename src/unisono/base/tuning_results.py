"""The figures that `unisono tune` measures, and how a file of them is checked."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LIMITS: Mapping[str, tuple[int, int]] = {
    "segment_bytes": (64 << 10, 64 << 20),
    "one_way_segment_bytes": (4 << 10, 64 << 20),
    "one_shot_bytes": (0, 1 << 20),
    "crowd_one_shot_bytes": (0, 16 << 20),
    "zero_copy_bytes": (0, 1 << 20),
    "cross_memory_bytes": (0, 1 << 30),
    "fetch_bytes": (0, 64 << 20),
    "lane_bytes": (0, 1 << 30),
}
"""The settings that are measured -> the least and the greatest figure that makes sense."""


class Rates(NamedTuple):
    """Seconds per byte in calls on vectors of `nbytes`.

    own: for the rank's own vector, which every algorithm reads and writes.
    copy: for bytes that are fetched from other ranks.
    combine: for bytes that are added.
    """

    nbytes: int
    own_s: float
    copy_s: float
    combine_s: float


class Moment(NamedTuple):
    """When figures were measured: the day, the processors, and how many of these other programs used before."""

    on: str
    busy: float
    processors: int


class HostCosts(NamedTuple):
    """What calls cost on this host: each call, each further round, and bytes, by the size of the vector, ascending.

    Small vectors stay in caches; long vectors do not fit.

    residual: the difference between timed calls and prices, as a share of the times, by the quadratic mean.
    residual, moment: None if they are not known.
    lanes, gain: so many threads of a rank that share the work are `gain` times as fast as one. The rates are of one.
    """

    call_s: float
    step_s: float
    rates: tuple[Rates, ...]
    residual: float | None = None
    moment: Moment | None = None
    lanes: int = 1
    gain: float = 1.0

    def shared_by(self, lanes: int) -> "HostCosts":
        """The costs of calls in which so many threads of each rank share copies and sums."""
        if lanes <= 1 or self.lanes <= 1:
            return self
        faster = 1 + (self.gain - 1) * min(1.0, (lanes - 1) / (self.lanes - 1))
        return self._replace(rates=tuple(Rates(some[0], *(cost / faster for cost in some[1:])) for some in self.rates))

    def rates_of(self, nbytes: float) -> Rates:
        """The rates for a size: between two measured sizes, they are interpolated by the size's logarithm."""
        sizes = [math.log(rates.nbytes) for rates in self.rates]
        at = math.log(min(max(nbytes, self.rates[0].nbytes), self.rates[-1].nbytes))
        for few, many, a, b in zip(self.rates, self.rates[1:], sizes, sizes[1:], strict=False):
            if at <= b:
                part = (at - a) / (b - a)
                mixed = (few[k] ** (1 - part) * many[k] ** part for k in (1, 2, 3))
                return Rates(int(nbytes), *mixed)
        return self.rates[-1]._replace(nbytes=int(nbytes))


class TuningResults(NamedTuple):
    """on: the day of the measurement.
    figures: setting -> bytes.
    costs: None if they are not known.
    moment: the moment of the figures; the costs may be older. None if it is not known.
    """

    on: str
    figures: Mapping[str, int]
    costs: HostCosts | None = None
    moment: Moment | None = None


def checked(found: Mapping[str, Any], key: Mapping[str, Any]) -> TuningResults:
    """The content of a file. Raises ValueError, KeyError or TypeError for what `save` has not written here.

    key: what the file says about its machine.
    """
    if {name: found[name] for name in key} != key:
        raise ValueError("it is of another machine or version")
    figures = {name: found["figures"][name] for name in LIMITS}
    for name, (least, most) in LIMITS.items():
        if type(figures[name]) is not int or not least <= figures[name] <= most:
            raise ValueError(f"{name} is {figures[name]!r}, not a number from {least} to {most}")
    costs = HostCosts(*found["costs"]) if found["costs"] else None
    if costs:
        rates = tuple(Rates(*some) for some in costs.rates)
        costs = costs._replace(rates=rates, moment=_moment(costs.moment))
        seconds = [costs.call_s, costs.step_s, *(figure for some in rates for figure in some[1:])]
        if not all(isinstance(figure, float) and 0 < figure < 1 for figure in seconds):
            raise ValueError(f"a cost is not between 0 and 1 s: {seconds}")
    return TuningResults(found["on"], figures, costs, _moment(found["moment"]))


def _moment(said: Sequence[Any] | None) -> Moment | None:
    return Moment(*said) if said else None
