"""Write the tables and charts of the README and the documentation, from the runs in `benchmarks/results`.

python -m benchmarks.figures           write them; charts need matplotlib
python -m benchmarks.figures --stale   list the runs whose code has changed since

A page has a block for each question, which this command fills:

    <!-- figures: {vendor}_hosts hosts=2x2 "bytes=8B|16MiB" "contender=unisono|Gloo" show=median,p99 chart=hosts -->
    <!-- end -->

names the run, here that of each vendor, selects rows by heading, and columns by contender, in this order. `table=` is
the title of another table than the first one. `show=`: figures of a cell, the median if not given; `show=none` leaves
the block empty. Without contenders, `columns=` selects columns. `chart=` is a drawing of the same figures, in
`docs/charts`, above the tables. Blocks that name the same chart share it.
"""

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

from .runs import RESULTS, ROOT, Cell, Table, markdown, read

BLOCK = re.compile(r"(<!-- figures: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
CHARTS = ROOT / "docs" / "charts"
_LINK = "https://github.com/unisono/unisono/blob/main/benchmarks/results"
_MOST_BARS = 4
_INK, _PAPER = "#010101", "#fefefe"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "unisono", "text.color": _INK, "axes.edgecolor": _INK,
    "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK, "figure.facecolor": _PAPER,
    "axes.facecolor": "none", "legend.framealpha": 0.0,
}  # fmt: skip
_SCHEMES = """<style>svg { --ink: #1f2328; --paper: #ffffff }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --paper: #0d1117 } }</style>"""
"""What _INK and _PAPER become, by the reader's scheme."""


def pages() -> list[Path]:
    """The pages that have blocks."""
    found = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    return sorted(page for page in found if "_build" not in page.parts and BLOCK.search(page.read_text()))


def filled(page: str) -> str:
    """The text of a page, with what the runs give in its blocks."""
    return BLOCK.sub(lambda block: f"{block[1]}{_block(block[2])}{block[3]}", page)


def names_of(what: str) -> list[str]:
    """The runs that a block shows."""
    pattern = re.escape(shlex.split(what)[0]).replace(r"\{vendor\}", "[a-z]+")
    return sorted(path.stem for path in RESULTS.glob("*.json") if re.fullmatch(pattern, path.stem))


def _block(what: str) -> str:
    names, words = names_of(what), shlex.split(what)[1:]
    if not names:
        return "\n*This has not been measured yet.*\n\n"
    options = dict(word.split("=", 1) for word in words)
    show, chart = options.pop("show", "median").split(","), options.pop("chart", "")
    if show == ["none"]:
        return ""
    parts = [f"![{chart.replace('_', ' ')}: the figures of the tables below](charts/{chart}.svg)"] * bool(chart)
    for name, (table, same) in _selections(names, options).items():
        figures = " and ".join(show).replace("least", "least time") if table.unit else ""
        parts.append(f"{markdown(table, show)}\n\n{_caption(name, [figures, *same])}")
    return "\n{}\n\n".format("\n\n".join(parts))


def _selections(names: Sequence[str], options: dict[str, str]) -> dict[str, tuple[Table, list[str]]]:
    """By run, what a block shows of it: see _selected."""
    title, columns = options.pop("table", ""), options.pop("columns", "")
    tables = {name: read(name).table(title) for name in names}
    for heading, wanted in options.items():
        found = {_plain(table, row, heading) for table in tables.values() for row in table.rows}
        if missing := set(_values(heading, wanted)) - found:
            raise ArgumentError(
                f"{', '.join(names)}: no row has {heading}={missing.pop()}; choose from {sorted(map(str, found))}"
            )
    selected = {name: _selected(table, options) for name, table in tables.items()}
    if columns:
        return {name: (_columns(table, columns.split(",")), same) for name, (table, same) in selected.items()}
    return selected


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


def draw_charts() -> None:
    """Write an SVG for each chart: a panel for each machine, of each block that names it."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    CHARTS.mkdir(exist_ok=True)
    for name, titles, tables in charts():
        by_size = [[*table.headings[: table.headings.index("contender")]] == ["bytes"] for table in tables]
        with mpl.rc_context(_STYLE):
            height = 4.0 if any(by_size) else 1.5 + 0.12 * max(len(table.rows) for table in tables)
            canvas = Figure(figsize=(11, height), layout="constrained")
            panels = canvas.subplots(1, len(tables), sharey=all(by_size), squeeze=False)[0]
            who = dict.fromkeys(who for table in tables for who in _medians(table))
            colours = {name: f"C{number}" for number, name in enumerate(who)}
            for axes, title, table, lines_of in zip(panels, titles, tables, by_size, strict=True):
                (_lines if lines_of else _dots if len(table.rows) > _MOST_BARS else _bars)(axes, table, colours)
                axes.set_title(title, fontsize=9)
                axes.grid(alpha=0.3)
            max(panels, key=lambda axes: len(axes.get_legend_handles_labels()[0])).legend(fontsize=8)
            path = CHARTS / f"{name}.svg"
            canvas.savefig(path, format="svg", metadata={"Date": None})
        text = path.read_text().replace(_INK, "var(--ink)").replace(_PAPER, "var(--paper)")
        path.write_text(re.sub(r"(<svg[^>]*>)", rf"\1{_SCHEMES}", text, count=1))


def charts() -> list[tuple[str, list[str], list[Table]]]:
    """The name of each chart, and of each panel in it a title and the table."""
    found: dict[str, tuple[list[str], list[Table]]] = {}
    for page in pages():
        for what in (block[1] for block in BLOCK.findall(page.read_text())):
            options = dict(word.split("=", 1) for word in shlex.split(what)[1:])
            chart, names = options.pop("chart", ""), names_of(what)
            options.pop("show", "")
            if chart and names:
                titles, tables = found.setdefault(chart, ([], []))
                titles += map(_title, names)
                tables += [table for table, _ in _selections(names, options).values()]
    return [(chart, *panels) for chart, panels in found.items()]


def _title(name: str) -> str:
    return f"{name.partition('_')[0]}, {(run := read(name)).date}, commit {run.commit}"


def _medians(table: Table) -> dict[str, dict[tuple[Cell, ...], float]]:
    """Contender -> what it did -> median in seconds."""
    at, median = table.headings.index("contender"), table.headings.index("median")
    found: dict[str, dict[tuple[Cell, ...], float]] = {}
    for row in table.rows:
        found.setdefault(str(row[at]), {})[tuple(row[:at])] = float(row[median]) / 1e6
    return found


def _lines(axes: Any, table: Table, colours: Mapping[str, str]) -> None:
    for who, medians in _medians(table).items():
        axes.plot([key[0] for key in medians], list(medians.values()), ".-", label=who, color=colours[who])
    sizes = sorted({row[0] for row in table.rows})
    axes.set(xscale="log", yscale="log", xlabel="bytes per rank", ylabel="median time in s")
    axes.set_xticks(sizes, [format_bytes(int(size)) for size in sizes], rotation=45)
    axes.minorticks_off()


def _dots(axes: Any, table: Table, colours: Mapping[str, str]) -> None:
    medians = _medians(table)
    keys = list(dict.fromkeys(key for of in medians.values() for key in of))
    for who, of in medians.items():
        axes.plot([of.get(key) for key in keys], range(len(keys)), "o", label=who, color=colours[who])
    headings = table.headings[: len(keys[0])]
    named = [", ".join(table.text([*key], heading) for heading in headings) for key in keys]
    axes.set_yticks(range(len(keys)), named, fontsize=8)
    axes.set(xscale="log", xlabel="median time in s", ylabel=", ".join(headings))
    axes.invert_yaxis()


def _bars(axes: Any, table: Table, colours: Mapping[str, str]) -> None:
    medians = _medians(table)
    keys = list(dict.fromkeys(key for of in medians.values() for key in of))
    for number, (who, of) in enumerate(medians.items()):
        places = [place + (number - (len(medians) - 1) / 2) * 0.35 for place in range(len(keys))]
        drawn = axes.barh(places, [of[key] * 1e3 for key in keys], 0.3, label=who, color=colours[who])
        axes.bar_label(drawn, fmt="%.1f", padding=3, fontsize=8)
    axes.set_yticks(range(len(keys)), [", ".join(map(str, key)) for key in keys], fontsize=8, rotation=90, va="center")
    axes.set(xlabel="median time of a training step in ms")
    axes.margins(x=0.12)
    axes.invert_yaxis()


def stale(most: int) -> list[str]:
    """A line for each run whose code has changed in more commits than this since."""
    said = []
    for path in sorted(RESULTS.glob("*.json")):
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
    """Write the tables and charts of the README and the documentation."""
    if stale_runs:
        print("\n".join(stale(commits)))
        return
    for page in pages():
        page.write_text(filled(page.read_text()))
        print(page.relative_to(ROOT))
    try:
        draw_charts()
    except ImportError:
        print("charts stay as they are: they need matplotlib (pip install 'unisono[bench]')")


if __name__ == "__main__":
    typer.run(figures)
