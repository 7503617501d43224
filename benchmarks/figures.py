"""Write the tables and the chart of the README and the documentation, from the runs in `benchmarks/results`.

python -m benchmarks.figures           write them; the chart needs matplotlib
python -m benchmarks.figures --stale   list the runs whose code has changed since

A page has a block for each table, which this command fills:

    <!-- figures: amd_hosts,intel_hosts hosts=2x2 "bytes=8B|16MiB" "contender=unisono|Gloo" show=median,p99 -->
    <!-- end -->

names the runs, selects rows by heading, and columns by contender, in this order. `table=` is the title of another table
than the first one. `show=`: figures of a cell, the median if not given. Without contenders, `columns=` selects columns.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from unisono.base.errors import ArgumentError
from unisono.base.units import format_bytes, parse_bytes

from .runs import (
    GLOO,
    INTEL_MPI,
    MEMCPY,
    OPEN_MPI,
    OURS,
    RESULTS,
    ROOT,
    SHARED,
    Cell,
    Table,
    lines,
    markdown,
    read,
)

BLOCK = re.compile(r"(<!-- figures: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
CHART = ROOT / "docs" / "all_reduce.svg"
_CHARTED = {"amd_collectives": "AMD", "intel_collectives": "Intel"}
_LINES = (OURS, SHARED, GLOO, OPEN_MPI, INTEL_MPI, MEMCPY)
_SUPPORT = "support"
_LINK = "https://github.com/unisono/unisono/blob/main/benchmarks/results"


def pages() -> list[Path]:
    """The pages that have blocks."""
    found = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    return sorted(page for page in found if "_build" not in page.parts and BLOCK.search(page.read_text()))


def filled(page: str) -> str:
    """The text of a page, with what the runs give in its blocks."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{_block(block[2])}\n\n{block[3]}", page)


def _block(what: str) -> str:
    names, *words = shlex.split(what)
    if names == _SUPPORT:
        return _supported()
    options = dict(word.split("=", 1) for word in words)
    show = options.pop("show", "median").split(",")
    title, columns = options.pop("table", ""), options.pop("columns", "")
    parts, tables = list[str](), {name: read(name).table(title) for name in names.split(",")}
    for heading, wanted in options.items():
        found = {_plain(table, row, heading) for table in tables.values() for row in table.rows}
        if missing := set(_values(heading, wanted)) - found:
            raise ArgumentError(f"{what}: no row has {heading}={missing.pop()}; choose from {sorted(map(str, found))}")
    for name, whole in tables.items():
        table, same = _selected(whole, options)
        if columns:
            table = _columns(table, columns.split(","))
        figures = " and ".join(show).replace("least", "least time") if table.unit else ""
        parts.append(f"{markdown(table, show)}\n\n{_caption(name, [figures, *same])}")
    return "\n\n".join(parts)


def _selected(table: Table, options: Mapping[str, str]) -> tuple[Table, list[str]]:
    """The rows that are asked for, in this order, without the columns that say the same in each; and what these say."""
    rows = list(table.rows)
    for heading, wanted in [*options.items()][::-1]:
        rows = [row for value in _values(heading, wanted) for row in rows if _plain(table, row, heading) == value]
    keys = table.headings[: table.headings.index("contender")] if table.unit else []
    same = [key for key in keys if len({_plain(table, row, key) for row in rows}) == 1]
    said = [f"{'' if key in ('call', 'dtype') else f'{key}: '}{table.text(rows[0], key)}" for key in same]
    return _columns(replace(table, rows=rows), [each for each in table.headings if each not in same]), said


def _values(heading: str, wanted: str) -> list[Cell]:
    return [parse_bytes(value) if heading == "bytes" else value for value in wanted.split("|")]


def _plain(table: Table, row: Sequence[Cell], heading: str) -> Cell:
    cell = row[table.headings.index(heading)]
    return cell if heading == "bytes" else str(cell)


def _columns(table: Table, names: Sequence[str]) -> Table:
    at = [table.headings.index(name) for name in names]
    return replace(table, headings=names, rows=[[row[place] for place in at] for row in table.rows])


def _caption(name: str, about: Sequence[str]) -> str:
    """Where a table comes from."""
    run, said = read(name), ", ".join(filter(None, about))
    where = f"{run.machine}, {run.date}, commit {run.commit} ([run]({_LINK}/{name}.json))"
    return f"*{f'{said[0].upper()}{said[1:]}. ' if said else ''}{where}.*"


def _supported() -> str:
    """The latest run of the test suite with each Python and PyTorch."""
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for run in json.loads((RESULTS / f"{_SUPPORT}.json").read_text()):
        latest[run["python"].rpartition(".")[0], run["torch"]] = run
    headings = ["python", "torch", "system", "passed", "skipped", "failed", "commit", "date"]
    rows = sorted(([str(run[heading]) for heading in headings] for run in latest.values()), reverse=True)
    return lines(["Python", "PyTorch", *headings[2:]], rows)


def chart_titles() -> list[str]:
    """What the chart says of the two runs that it shows."""
    return [f"{vendor}, {(run := read(name)).date}, commit {run.commit}" for name, vendor in _CHARTED.items()]


def draw_chart() -> None:
    """Write an SVG: the median time of a float32 all_reduce on two ranks by its size, on both machines."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "unisono"}):
        canvas = Figure(figsize=(11, 4.5), layout="constrained")
        all_axes = canvas.subplots(1, 2, sharey=True)
        for axes, name, title in zip(all_axes, _CHARTED, chart_titles(), strict=True):
            medians = charted(name)
            for who, by_size in medians.items():
                style = {"color": "gray", "linestyle": "--"} if who == MEMCPY else {"marker": "."}
                axes.plot(list(by_size), list(by_size.values()), label=who, **style)
            sizes = list(medians[OURS])
            axes.set(xscale="log", yscale="log", xlabel="bytes per rank")
            axes.set_xticks(sizes, [format_bytes(size) for size in sizes], rotation=45)
            axes.minorticks_off()
            axes.set_title(title, fontsize=9)
            axes.grid(alpha=0.3)
        all_axes[0].set_ylabel("median time in µs")
        all_axes[1].legend()
        canvas.savefig(CHART, format="svg", metadata={"Date": None})


def charted(name: str) -> dict[str, dict[int, float]]:
    """Contender -> bytes -> median."""
    table, _ = _selected(read(name).table(), {"call": "all_reduce", "dtype": "float32", "ranks": "2"})
    found: dict[str, dict[int, float]] = {who: {} for who in _LINES}
    for row in table.rows:
        cells = dict(zip(table.headings, row, strict=True))
        if cells["contender"] in found:
            found[str(cells["contender"])][int(cells["bytes"])] = float(cells["median"])
    return found


def stale(most: int) -> list[str]:
    """A line for each run whose code has changed in more commits than this since."""
    said = []
    for path in sorted(RESULTS.glob("*.json")):
        if path.stem == _SUPPORT:
            continue
        run = read(path.stem)
        command = ["git", "rev-list", "--count", f"{run.commit.split()[0]}..HEAD", "--", *run.code]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        changes = done.stdout.strip() or "an unknown number of"
        if not changes.isdigit() or int(changes) > most:
            said.append(f"{path.stem}: {changes} commits to {' '.join(run.code)} since {run.commit} ({run.date})")
    return said


def figures(
    *,
    stale_runs: Annotated[
        bool, typer.Option("--stale", help="List runs whose code has changed, and write nothing.")
    ] = False,
    commits: Annotated[int, typer.Option(help="With --stale: by more commits than this.")] = 0,
) -> None:
    """Write the tables and the chart of the README and the documentation."""
    if stale_runs:
        print("\n".join(stale(commits)))
        return
    for page in pages():
        page.write_text(filled(page.read_text()))
        print(page.relative_to(ROOT))
    try:
        draw_chart()
    except ImportError:
        print(f"{CHART.relative_to(ROOT)} stays as it is: it needs matplotlib (pip install 'unisono[bench]')")


if __name__ == "__main__":
    typer.run(figures)
