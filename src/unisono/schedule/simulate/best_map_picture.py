"""The map as a picture, by matplotlib."""

from __future__ import annotations

from pathlib import Path

from ...base.errors import ArgumentError
from ...base.units import format_bytes
from .best_map import BestMap

_COLOURS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac",
)  # fmt: skip


def draw_atlas(found: BestMap, path: Path) -> None:
    """Write the map to a file; its suffix says how: .svg, .png or .pdf. Raises ArgumentError."""
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise ArgumentError(f"{path}: the name of the picture must end in .svg, .png or .pdf")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise ArgumentError("the picture of a map needs matplotlib: pip install 'unisono[bench]'") from None
    names = found.names
    colour = {name: _COLOURS[k % len(_COLOURS)] for k, name in enumerate(names)}
    figure = Figure(figsize=(1.0 + 0.75 * len(found.sizes), 1.6 + 0.42 * len(found.hosts) + 0.2 * len(names)))
    axes = figure.subplots()
    for y, row in enumerate(found.best):
        for x, (name, _) in enumerate(row):
            axes.bar(x, 1, width=1, bottom=y - 0.5, color=colour[name], edgecolor="white", linewidth=1)
    axes.set_xticks(range(len(found.sizes)), [format_bytes(size) for size in found.sizes], rotation=45, ha="right")
    axes.set_yticks(range(len(found.hosts)), [f"{hosts.ranks} ({hosts.text})" for hosts in found.hosts])
    axes.set(xlabel="vector", ylabel="ranks (hosts)", title=found.title)
    axes.set_xlim(-0.5, len(found.sizes) - 0.5)
    axes.set_ylim(-0.5, len(found.hosts) - 0.5)
    handles = [Patch(color=colour[name], label=name) for name in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    figure.set_layout_engine("constrained")
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": found.title}):  # the same map is the same file
        try:
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        except OSError as error:
            raise ArgumentError(f"cannot write {path}: {error.strerror}") from error
