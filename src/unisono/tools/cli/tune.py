"""`unisono tune`: in some seconds, measure on this machine the settings that otherwise have defaults."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import typer

import unisono

from ...base.config import SETTINGS, Config
from ...base.errors import ArgumentError
from ...base.linux import model as processor
from ...base.tuning import file, measured, save
from ...base.tuning_results import LIMITS, HostCosts, Moment, TuningResults
from ...base.units import format_bytes, format_seconds
from ...schedule.algorithms import CATALOGUE
from ...schedule.choose import is_oversubscribed, one_shot_limit, one_shot_product
from ...schedule.choose.lane_limits import MOST
from ...schedule.simulate import Timed, calibrate, trusted
from ..machine.checks import check_load, look_at_load
from .shared.printing import compile_first, console, date, plain_table, processors, progress
from .shared.timed_calls import Trial, measure, quietest

_CALL_TURNS = 5

CALIBRATION = (
    "all_reduce.one_shot", "all_reduce.two_shot", "all_reduce.tree", "all_reduce.linear_pipeline", "broadcast.linear",
    "all_gather.direct",
)  # fmt: skip
"""The algorithms that differ most in what they copy and combine, and in their rounds."""

SIZES = (8, 64 << 10, 1 << 20, 16 << 20)
"""The first is for calls and rounds; the last does not stay in a cache of one processor."""


def time_here(collective: str, names: Sequence[str], ranks: int, nbytes: int, seconds: float) -> dict[str, float]:
    """The least seconds of a call by each of these algorithms, among new ranks, in about `seconds`."""
    most = 4 * (os.cpu_count() or 1)
    if ranks > most:
        raise ArgumentError(f"--measure: {ranks} ranks on these processors would say nothing; take {most} at most")
    with unisono.world(ranks, timeout_s=120) as world:
        full = [f"{collective}.{name}" for name in names]
        return dict(zip(names, least_times(world, full, nbytes, seconds), strict=True))


def least_times(world: unisono.World, names: Sequence[str], nbytes: int, seconds: float) -> list[float]:
    """For each algorithm, by its full name, the least seconds of a call: of the slowest rank in the quietest turn.

    If ranks are oversubscribed, it is the median of this turn: the least depends on which of them had a processor.
    """
    called = [name.partition(".") for name in names]
    trials = [Trial(collective, nbytes, algorithm=name) for collective, _, name in called]
    ranks = world.run(measure, trials, _CALL_TURNS, seconds, median if is_oversubscribed(world.size) else min)
    return quietest(ranks)


def host_costs(world: unisono.World, seconds: float, show: Callable[[int], object]) -> HostCosts:
    """The costs of calls on this host, from calls of two ranks. show: is called with the number of sizes done."""
    timed = []
    for done, nbytes in enumerate(SIZES):
        show(done)
        times = least_times(world, CALIBRATION, nbytes, seconds / len(SIZES))
        timed += [Timed(CATALOGUE[name], nbytes, took_s) for name, took_s in zip(CALIBRATION, times, strict=True)]
    return calibrate(timed, 2, Config().segment_bytes)


_KI, _MI = 1 << 10, 1 << 20

_RANKS = 2  # the number of ranks for all questions, except the one about oversubscribed ranks
_TURNS = 7  # the number of turns of each alternative
_FOR_COSTS = 0.3  # the part of the time for the costs of calls
_MOST_OVERSUBSCRIBED = 16  # the most oversubscribed ranks: two for each processor
_ENOUGH = 0.05  # a default gives way to a figure that is faster by this share, on the mean of the calls tried


@dataclass(frozen=True)
class Question:
    """Which figure of a setting is best?

    calls: the calls to time: collective, bytes, and whether tensors are in shared memory.
    alternatives: settings, and an algorithm or None.
    limit: the first of two alternatives is better up to some size, and this size is the figure; otherwise each
    alternative has a figure.
    """

    setting: str
    calls: Sequence[tuple[str, int, bool]]
    alternatives: Sequence[tuple[Mapping[str, int], str | None]]
    limit: bool


_FEW = [_KI << k for k in range(1, 8)]


def _of_steps(setting: str) -> Question:
    both: Sequence[tuple[Mapping[str, int], str | None]] = (({}, "one_shot"), ({}, "two_shot"))
    return Question(setting, [("all_reduce", size, False) for size in _FEW], both, limit=True)


_OVERSUBSCRIBED = _of_steps("crowd_one_shot_bytes")


def _questions() -> Iterator[Question]:
    """The questions for two ranks."""
    yield _of_steps("one_shot_bytes")
    staged = ({"zero_copy_bytes": _MI}, None), ({"zero_copy_bytes": 0}, None)
    yield Question("zero_copy_bytes", [("all_reduce", size, True) for size in _FEW], staged, limit=True)
    pages = ({"fetch_bytes": 64 * _MI}, None), ({"fetch_bytes": 0}, None)
    yield Question("fetch_bytes", [("broadcast", 64 * _KI << k, False) for k in range(8)], pages, limit=True)
    segments = [({"segment_bytes": size * _KI}, None) for size in (512, 256, 1024)]
    crossing = [({"cross_memory_bytes": size * _KI}, None) for size in (1024, 256, 4096, 0)]
    yield Question(
        "cross_memory_bytes", [("all_reduce", 256 * _KI << k, False) for k in range(6)], crossing, limit=False
    )
    long = [(kind, size * _MI, False) for kind in ("all_reduce", "all_to_all") for size in (1, 4, 16)]
    yield Question("segment_bytes", long, segments, limit=False)
    rooted = [(kind, 512 * _KI << k, False) for kind in ("broadcast", "reduce") for k in range(3)]
    one_way = [({"one_way_segment_bytes": size * _KI}, None) for size in (128, 256, 512)]
    yield Question("one_way_segment_bytes", rooted, one_way, limit=False)


_ONE_LANE = {"lanes": 1}


def _of_lanes(lanes: int) -> Question:
    """From which size on so many lanes of two ranks are faster than one."""
    both = (_ONE_LANE, None), ({"lanes": lanes, "lane_bytes": 0}, None)
    return Question("lane_bytes", [("all_reduce", _MI << k, False) for k in range(7)], both, limit=True)


def tune(
    *,
    seconds: Annotated[float, typer.Option(min=0.0, help="Time to measure for; start-up comes on top.")] = 10.0,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Measure beside other programs, too; the figures are marked.")
    ] = False,
) -> None:
    """Measure settings on this machine, and keep the figures for programs that start from now on.

    Then measure the costs here of a call, a round and bytes, for the prices of `unisono explain` and `simulate`.

    Other programs that run meanwhile spoil the figures, so nothing is measured if they use the processors.
    """
    if processors() < 2:
        raise ArgumentError("tune needs two processors, one for each of two ranks; this process may use one only")
    if file() is None:
        raise ArgumentError("UNISONO_MEASURED is empty, so there is no file for figures: unset it, or name one")
    load = look_at_load()
    busy = check_load(load, processors(), _RANKS)
    if busy.level != "ok" and not anyway:
        raise ArgumentError(
            f"{busy.says}, and all programs that start later would use what is measured beside them: run tune when "
            "they have ended, or add --anyway"
        )
    default, found = Config(), dict[str, int]()
    lanes, oversubscribed = min(MOST, processors() // _RANKS), 2 * (os.cpu_count() or 1)
    questions = [*([_of_lanes(lanes)] if lanes > 1 else []), *_questions()]
    asked = [*questions, *([_OVERSUBSCRIBED] if oversubscribed <= _MOST_OVERSUBSCRIBED else [])]
    many = sum(len(question.calls) for question in asked)
    share_s, usual = seconds * (1 - _FOR_COSTS) / many, {name: getattr(default, name) for name in LIMITS}
    compile_first()
    with progress("tune", many + len(SIZES)) as show:
        done = 0

        def ask(world: unisono.World, question: Question) -> Sequence[Sequence[float]]:
            """The seconds, per call and alternative."""
            nonlocal done
            times = []
            for kind, nbytes, shared in question.calls:
                show(done, question.setting)
                trials = [
                    Trial(kind, nbytes, shared, {**usual, **_ONE_LANE, **found, **figures}, algorithm)
                    for figures, algorithm in question.alternatives
                ]
                times.append(quietest(world.run(measure, trials, _TURNS, share_s)))
                done += 1
            return times

        with unisono.world(_RANKS, timeout_s=120, config=Config(segment_bytes=_MI)) as world:
            gain = 1.0
            for question in questions:
                times = ask(world, question)
                found[question.setting] = _answer(question, times, getattr(default, question.setting))
                if question.setting == "lane_bytes":
                    gain = min(max(1.0, times[-1][0] / times[-1][1]), float(lanes))
            costs = host_costs(world, seconds * _FOR_COSTS, lambda sizes: show(done + sizes, "what calls cost"))
        done += len(SIZES)
        found.setdefault("lane_bytes", default.lane_bytes)
        found[_OVERSUBSCRIBED.setting] = default.crowd_one_shot_bytes
        if _OVERSUBSCRIBED in asked:
            with unisono.world(oversubscribed, timeout_s=120, config=Config()) as world:
                found[_OVERSUBSCRIBED.setting] = _crowd_product(ask(world, _OVERSUBSCRIBED), oversubscribed, default)
        show(done, "")
    today = date()
    moment = Moment(today.split()[0], round(load.busy, 2), processors())
    kept, wrong = trusted(costs._replace(moment=moment, lanes=lanes, gain=gain))
    out = console()
    out.print(f"{processor()}, {processors()} processors · unisono {unisono.__version__} · {today}\n")
    if busy.level != "ok":
        out.print(f"[bold]Measured while {busy.says}.[/]\n", soft_wrap=True)
    table = plain_table("setting", "default", "measured", "what it is")
    for name, setting in SETTINGS.items():
        if name in found:
            figures = (format_bytes(getattr(config, name)) for config in (default, default.replace(**found)))
            table.add_row(name, *figures, setting.why)
    out.print(table)
    out.print()
    if kept:
        out.print(_costs_text(kept), soft_wrap=True)
    for each in wrong:
        out.print(f"Not kept, as it lies on the least that is possible, which is noise: {each}.", soft_wrap=True)
    if not kept:
        before = measured()
        kept = before.costs if before else None
        rest = "there are no earlier costs"
        if before and kept:
            rest = f"the costs of {kept.moment.on if kept.moment else before.on} stay"
        out.print(f"These timings do not say what calls cost; {rest}.", soft_wrap=True)
    try:
        path = save(TuningResults(moment.on, found, kept, moment))
    except OSError as error:
        raise ArgumentError(f"the figures are not kept ({error}): name another file with UNISONO_MEASURED") from error
    out.print(
        f"\nKept in {path} for programs that start from now on. Remove the file for the defaults.", soft_wrap=True
    )


def _costs_text(costs: HostCosts) -> str:
    lines = [f"A call takes {format_seconds(costs.call_s)}, each further round {format_seconds(costs.step_s)}."]
    for rates in costs.rates:
        own, copied, combined = (format_seconds(cost * _MI) for cost in rates[1:])
        said = f"a rank's own vector takes {own} per MiB, what it copies from others {copied}, what it adds {combined}"
        lines.append(f"In calls on {format_bytes(rates.nbytes)} {said}.")
    if costs.lanes > 1:
        lines.append(f"{costs.lanes} lanes of a rank are {costs.gain:.1f} times as fast as one.")
    if costs.residual is not None:
        lines.append(f"Calls take {costs.residual:.0%} more or less than that, on the quadratic mean.")
    return "\n".join(lines)


def _answer(question: Question, times: Sequence[Sequence[float]], default: int) -> int:
    """The best figure of the setting. times: seconds, per call and alternative."""
    if question.limit:
        return cut([nbytes for _, nbytes, _ in question.calls], times, default)
    figures = [figures[question.setting] for figures, _ in question.alternatives]
    return pick(figures, times, default)


def _crowd_product(times: Sequence[Sequence[float]], ranks: int, default: Config) -> int:
    usual = one_shot_limit(ranks, default, oversubscribed=True)
    near = max((size for size in _FEW if size <= usual), default=0)
    best = cut(_FEW, times, near)
    return default.crowd_one_shot_bytes if best == near else one_shot_product(best, ranks)


def cut(sizes: Sequence[int], times: Sequence[Sequence[float]], default: int) -> int:
    """Up to which size the first of two alternatives is faster; 0: at none. times: seconds, per size and alternative.

    With this limit the calls are fastest on the geometric mean, so one odd time counts little.
    """
    gains = [math.log(second / first) for first, second in times]
    limits = [0, *sizes]
    scores = {limit: sum(gain for size, gain in zip(sizes, gains, strict=True) if size <= limit) for limit in limits}
    best = max(limits, key=scores.__getitem__)
    return best if scores[best] - scores.get(default, -math.inf) > _ENOUGH * len(sizes) else default


def pick(figures: Sequence[int], times: Sequence[Sequence[float]], default: int) -> int:
    """The figure with which calls are fastest on the geometric mean. times: seconds, per call and figure."""
    scores = {figure: -sum(math.log(of_call[k]) for of_call in times) for k, figure in enumerate(figures)}
    best = max(figures, key=scores.__getitem__)
    return best if scores[best] - scores[default] > _ENOUGH * len(times) else default
