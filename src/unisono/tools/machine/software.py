"""What is installed, where machine code is kept, and what the environment says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from ...base.tuning import TuningResults
from ...base.units import plural
from .finding import Finding, advice, fine, problem
from .processor_time import TimeShares
from .processors import check_load

PACKAGES = ("torch", "numba", "llvmlite", "numpy")
"""Whose versions count."""

_RANKS, _MUCH_RESIDUAL = 2, 0.3
"""`unisono tune` times calls of so many ranks. From this distance between calls and their prices on it is told."""

_TUNE = "unisono tune, while nothing else runs; it takes some ten seconds"
_SPOILED = "figures that were measured beside other programs make later programs slower"

_WISH = re.compile(r"(?P<name>[\w.-]+)\s*\(?(?P<bounds>[^;)]*)\)?(;.*)?")
_BOUND = re.compile(r"\s*(?P<sign>>=|<=|==|!=|<|>)\s*(?P<version>[\w.]+)")


def installed() -> dict[str, str]:
    """The versions of these packages that are there."""
    return {name: there.version for name, there in _distributions(PACKAGES)}


def wanted() -> dict[str, list[str]]:
    """What this library and these packages say that they need, such as `numpy<2.6,>=1.22`."""
    return {
        name: [wish for wish in there.requires or () if "extra ==" not in wish]
        for name, there in _distributions(("unisono", *PACKAGES))
    }


def _distributions(names: Sequence[str]) -> Iterator[tuple[str, metadata.Distribution]]:
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.distribution(name)


def check_versions(python: str, versions: Mapping[str, str], wishes: Mapping[str, Sequence[str]]) -> Finding:
    """Do the versions fit together? versions: of packages. wishes: what each says that it needs."""
    missing = [name for name in PACKAGES if name not in versions]
    if missing:
        names = ", ".join(missing)
        return problem(
            "versions", f"{names}: not there", reason="unisono needs them", change=f"pip install {' '.join(missing)}"
        )
    said = f"python {python}, " + ", ".join(f"{name} {version}" for name, version in versions.items())
    bad = list(_unmet(versions, wishes))
    if not bad:
        return fine("versions", said)
    asker, name, bounds = bad[0]
    return problem(
        "versions",
        f"{name} {versions[name]}, but {asker} needs {name}{bounds}",
        reason="other pairs fail when they are imported, or have never been tried",
        change=f'pip install "{name}{bounds}"',
    )


def _unmet(versions: Mapping[str, str], wishes: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str, str]]:
    """Who needs which package in which versions, and does not have it."""
    for asker, lines in wishes.items():
        for line in lines:
            wish = _WISH.fullmatch(line)
            if wish is None or wish["name"] not in versions:
                continue
            there = _numbers(versions[wish["name"]])
            if not all(_holds(there, bound["sign"], bound["version"]) for bound in _BOUND.finditer(wish["bounds"])):
                yield asker, wish["name"], wish["bounds"].strip()


def _holds(there: tuple[int, ...], sign: str, version: str) -> bool:
    bound = _numbers(version)
    width = max(len(there), len(bound))
    a, b = (numbers + (0,) * (width - len(numbers)) for numbers in (there, bound))
    return {">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, "<": a < b, ">": a > b}[sign]


def _numbers(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13, 0): up to what is no number."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release[0].split(".")) if release else ()


def check_machine_code(folder: Path | None, on_disk: bool) -> Finding:
    """Can machine code be kept? folder: where it would be; None: nowhere. on_disk: is it there?"""
    if folder is not None:
        return fine("machine code", f"{'kept' if on_disk else 'will be kept'} in {folder}")
    if on_disk:
        return fine("machine code", "installed, where this user cannot write")
    return problem(
        "machine code",
        "it cannot be kept: no folder for it can be written to",
        reason="each process compiles for itself when it starts, some ten seconds and more",
        change="set UNISONO_CACHE_DIR to a folder that all ranks of this host can write to",
    )


def check_threads(environ: Mapping[str, str], usable: int, ranks: int) -> Finding:
    """Do torch's threads leave processors to the ranks? usable: processors."""
    said = environ.get("OMP_NUM_THREADS", "")
    if not said.isdecimal():
        return fine("threads", "OMP_NUM_THREADS is not set: torchrun and unisono run choose it")
    threads = int(said)
    if threads * ranks <= max(usable, ranks):
        return fine("threads", f"OMP_NUM_THREADS={threads}")
    return advice(
        "threads",
        f"OMP_NUM_THREADS={threads}: {plural(ranks, 'rank')} have {threads * ranks} threads on {usable} processors",
        reason="threads of one rank displace others, and all wait for the last",
        change=f"OMP_NUM_THREADS={max(1, usable // ranks)}",
    )


def check_tuned(found: TuningResults | None) -> Finding:
    """Has `unisono tune` measured this machine, and can its figures be trusted?"""
    reason = "from which size on which way is faster depends on the machine"
    if found is None:
        return advice("tune", "the defaults are used", reason=reason, change=_TUNE)
    says, residual = f"measured on {found.on}", found.costs.residual if found.costs else None
    moments = [found.moment, *([found.costs.moment] if found.costs else [])]
    for moment in moments:
        if moment is None:
            return advice("tune", f"{says} without a note of the load", reason=_SPOILED, change=_TUNE)
        load = check_load(TimeShares(moment.busy, 0.0, ""), moment.processors, _RANKS)
        if load.level != "ok":
            says = f"measured on {moment.on}, while {load.says}"
            return advice("tune", says, reason=_SPOILED, change=_TUNE)
    if residual is not None and residual > _MUCH_RESIDUAL:
        says = f"{says}: calls took {residual:.0%} more or less than what they should by the costs found then"
        return advice("tune", says, reason=_SPOILED, change=_TUNE)
    return fine("tune", says)
