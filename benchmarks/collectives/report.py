"""The results as Markdown, as JSON lines, and as a plot of time against size."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from unisono.base.errors import ArgumentError
from unisono.base.units import format_bytes

from ..reports import head, table
from .extras import Extras
from .figures import Figure, Key, Record, algbw, busbw, by_contender, percentile
from .goals import Row

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


def markdown(machine: Mapping[str, str], notes: Iterable[str], rows: Sequence[Row], known: Mapping[Key, Figure]) -> str:
    parts = [*head("Benchmark", machine), *(f"- note: {note}" for note in notes)]
    parts += ["", "## Goals", *table(("goal", "target", "measured", ""), map(_goal, rows))]
    parts += ["", "## Figures", "", _HOW]
    for op, dtype, ranks in dict.fromkeys(key[:3] for key in known):
        same = [key for key in known if key[:3] == (op, dtype, ranks)]
        same.sort(key=lambda key: (key.nbytes, by_contender(key.contender)))
        parts += ["", f"### {op}, {dtype}, {ranks} ranks"]
        parts += table(_COLUMNS, (_figure(key, known) for key in same))
    return "\n".join(parts) + "\n"


def _goal(row: Row) -> Sequence[str]:
    return row.goal, row.target, row.measured, f"**{row.verdict}**" if row.verdict == "short" else row.verdict


def _figure(key: Key, known: Mapping[Key, Figure]) -> Sequence[str]:
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


def _share(known: Mapping[Key, Figure], key: Key, yardstick: str) -> str:
    """The yardstick's median as a percentage of this one's."""
    other = known.get(Key(yardstick, "float32", key.ranks, key.nbytes, yardstick))
    return f"{100 * other.p50 / known[key].p50:.0f}" if other else ""


def json_lines(machine: Mapping[str, str], extras: Extras, records: Iterable[Record]) -> Iterator[str]:
    """The machine and the extras on the first line, then one measurement of one round per line; times in seconds."""
    yield json.dumps({**machine, **extras})
    for record in records:
        yield json.dumps(
            {
                **record.key._asdict(),
                "round": record.turn,
                "iterations": len(record.times),
                "min_s": min(record.times),
                **{f"p{percent}_s": percentile(record.times, percent) for percent in (50, 99)},
                "wrong": record.wrong,
                "barrier_s": record.barrier_s,
            }
        )


def plot(known: Mapping[Key, Figure], machine: Mapping[str, str], path: Path) -> None:
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
