"""A plot of the time of an all_reduce against its size, one line per contender."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from unisono.base.errors import ArgumentError
from unisono.base.units import format_bytes

from .figures import Figure, Key, by_contender


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
