"""Figures, computed from measured times; and they as Markdown, and as a plot of time against size."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from unisono.base.errors import ArgumentError
from unisono.base.units import format_bytes

from ..reports import grouped, head, table
from .protocol import Cell, Sample

_HOW = """\
Every rank rewrites its whole input (and output) before each timed call; all ranks meet in a barrier; each times one
call; an iteration takes as long as its slowest rank. Contenders take turns within each round, every result is checked
element by element. Sizes count as in nccl-tests: the larger tensor of a rank. GB is 1e9 bytes. `% memcpy` and
`% floor` compare with a memcpy, and with one read-modify-write pass in place, of as many bytes by all ranks at once:
100 means as fast. The barrier tells in which mode a virtual machine is: compare ratios within one run. Ranks that wait
in it compete with Gloo's own threads for the processors, which spoils Gloo's medians more than its least times: a ratio
reaches its goal only if it does by both."""

_COLUMNS = (
    "size (B)", "count", "contender", "time p50 (µs)", "min", "p99", "algbw (GB/s)", "busbw (GB/s)", "#wrong",
    "% memcpy", "% floor", "barrier (µs)", "iterations",
)  # fmt: skip


class Key(NamedTuple):
    """What was measured: the figures of two keys that differ in the contender alone may be compared."""

    op: str
    dtype: str
    ranks: int
    nbytes: int
    contender: str


@dataclass(frozen=True)
class Record:
    """One measurement in one round: seconds of each iteration, the slowest rank's."""

    key: Key
    turn: int
    times: list[float]
    wrong: int
    barrier_s: float


@dataclass(frozen=True)
class Figure:
    """All rounds of one key together; times in seconds."""

    least: float
    p50: float
    p99: float
    iterations: int
    wrong: int
    barrier_s: float


Known = Mapping[Key, Figure]


def by_contender(name: str) -> tuple[bool, bool, str]:
    """A sort key: ours first, the yardsticks last."""
    return name in ("memcpy", "floor"), not name.startswith("unisono"), name


def slowest(cell: Cell, turn: int, samples: Sequence[Sample]) -> Record:
    """What the ranks saw of one cell, as one record: an iteration takes as long as its slowest rank."""
    key = Key(cell.op, cell.dtype, len(samples), cell.nbytes, cell.contender)
    times = [max(iteration) for iteration in zip(*(sample.times for sample in samples), strict=True)]
    return Record(key, turn, times, sum(sample.wrong for sample in samples), max(s.barrier_s for s in samples))


def percentile(times: Sequence[float], percent: float) -> float:
    """The smallest of `times` that at least `percent` of them do not exceed."""
    ordered = sorted(times)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def figures(records: Iterable[Record]) -> dict[Key, Figure]:
    """One figure per key, over the iterations of all its rounds. The barrier is the median of the rounds."""
    found = {}
    for (key,), same in grouped(records, "key").items():
        times = [seconds for record in same for seconds in record.times]
        wrong, barrier_s = sum(record.wrong for record in same), percentile([record.barrier_s for record in same], 50)
        found[key] = Figure(min(times), percentile(times, 50), percentile(times, 99), len(times), wrong, barrier_s)
    return found


def algbw(nbytes: int, seconds: float) -> float:
    """Bytes over time, in GB/s (GB = 1e9)."""
    return nbytes / seconds / 1e9


def busbw(op: str, nbytes: int, ranks: int, seconds: float) -> float:
    """What the link of a rank carries, in GB/s, as nccl-tests counts it: comparable across numbers of ranks."""
    share = (ranks - 1) / ranks
    factor = {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "all_to_all": share}
    return algbw(nbytes, seconds) * factor.get(op, 1)


def ratio(known: Known, ours: Key, theirs: Key) -> tuple[float, float] | None:
    """How many times as long they take, by least times and by medians; None where one is not measured."""
    if ours not in known or theirs not in known:
        return None
    return known[theirs].least / known[ours].least, known[theirs].p50 / known[ours].p50


def markdown(machine: Mapping[str, str], notes: Iterable[str], rows: Iterable[Sequence[str]], known: Known) -> str:
    parts = [*head("Benchmark", machine), *(f"- note: {note}" for note in notes)]
    goals = ([*cells, f"**{verdict}**" if verdict == "short" else verdict] for *cells, verdict in rows)
    parts += ["", "## Goals", *table(("goal", "target", "measured", ""), goals)]
    parts += ["", "## Figures", "", _HOW]
    for op, dtype, ranks in dict.fromkeys(key[:3] for key in known):
        same = [key for key in known if key[:3] == (op, dtype, ranks)]
        same.sort(key=lambda key: (key.nbytes, by_contender(key.contender)))
        parts += ["", f"### {op}, {dtype}, {ranks} ranks"]
        parts += table(_COLUMNS, (_figure(key, known) for key in same))
    return "\n".join(parts) + "\n"


def _figure(key: Key, known: Known) -> Sequence[str]:
    figure = known[key]
    size = {"float32": 4, "bfloat16": 2}[key.dtype]
    return (
        f"{key.nbytes} ({format_bytes(key.nbytes)})",
        str(key.nbytes // size),
        key.contender,
        f"{figure.p50 * 1e6:.4g}",
        f"{figure.least * 1e6:.4g}",
        f"{figure.p99 * 1e6:.4g}",
        f"{algbw(key.nbytes, figure.p50):.3f}",
        f"{busbw(key.op, key.nbytes, key.ranks, figure.p50):.3f}",
        str(figure.wrong),
        *(_share(known, key, yardstick) for yardstick in ("memcpy", "floor")),
        f"{figure.barrier_s * 1e6:.2g}",
        str(figure.iterations),
    )


def _share(known: Known, key: Key, yardstick: str) -> str:
    """The yardstick's median as a percentage of this one's."""
    other = known.get(Key(yardstick, "float32", key.ranks, key.nbytes, yardstick))
    return f"{100 * other.p50 / known[key].p50:.0f}" if other else ""


def plot(known: Known, machine: Mapping[str, str], path: Path) -> None:
    """Write an SVG: medians of float32 all_reduce over the smallest number of ranks measured, beside a memcpy."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise ArgumentError("a plot needs matplotlib: pip install 'unisono[bench]'") from error
    shown = [key for key in known if key.op in ("all_reduce", "memcpy") and key.dtype == "float32"]
    if not shown:
        raise ArgumentError("there is nothing to plot: no all_reduce was measured")
    ranks = min(key.ranks for key in shown)
    shown = sorted(key for key in shown if key.ranks == ranks)
    sizes = sorted({key.nbytes for key in shown})
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "unisono"}):
        canvas = Canvas(figsize=(8, 5), layout="constrained")
        axes = canvas.add_subplot()
        for contender in sorted({key.contender for key in shown}, key=by_contender):
            medians = {key.nbytes: known[key].p50 * 1e6 for key in shown if key.contender == contender}
            line = axes.plot(list(medians), list(medians.values()), ".-", label=contender)
            if contender == "memcpy":
                line[0].set(color="gray", linestyle="--", marker="")
        axes.set(xscale="log", yscale="log", xlabel="bytes per rank", ylabel="median time (µs)")
        axes.set_xticks(sizes, [format_bytes(size) for size in sizes], rotation=45)
        axes.minorticks_off()
        axes.set_title(f"all_reduce, float32, {ranks} ranks\n{machine['machine']}, {machine['date']}", fontsize=9)
        axes.grid(alpha=0.3)
        axes.legend()
        canvas.savefig(path, format="svg", metadata={"Date": None})
