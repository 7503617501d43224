"""All checks of a machine, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...base.cgroups import allowance
from .finding import LEVELS, Finding
from .linux_files import Files
from .machine_memory import check_address_space, check_files, check_huge_pages, check_memory, check_shm
from .network_address import check_address, check_packets
from .pages import CopyTimes
from .probe import Probed
from .processor_time import TimeShares
from .processors import check_clock, check_load, check_processors, check_quota, check_stolen
from .rights import check_cross_memory, check_memfd, check_watching
from .software import check_machine_code, check_threads, check_tuned, check_versions, installed, wanted
from .speed import Speed, check_barrier, crossing_gain


class Measurements(NamedTuple):
    """What was measured; nothing of it, by default. reaches: may ranks read each other's memory? stolen: meanwhile."""

    copies: CopyTimes | None = None
    speeds: Sequence[Speed] = ()
    reaches: bool | None = None
    stolen: TimeShares | None = None


def starts(files: Files, seen: Probed, ranks: int) -> list[Finding]:
    """The findings that decide whether ranks can start here at all."""
    allowed = allowance(files.root)
    return [
        check_memfd(files, seen.no_memfd),
        check_watching(seen.no_watching),
        check_memory(files, allowed, ranks),
        check_address_space(seen.address_space, seen.heap_bytes, ranks),
        check_files(seen.files, ranks),
        check_versions(seen.python, installed(), wanted()),
        check_machine_code(seen.code_folder, seen.code_kept),
    ]


def examine(files: Files, seen: Probed, ranks: int, found: Measurements) -> list[Finding]:
    """What is right with this machine for so many ranks, and what to change; the worst first."""
    allowed = allowance(files.root)
    every = [
        check_processors(files, seen.usable, ranks),
        check_quota(allowed, seen.usable, ranks),
        check_load(seen.load, seen.usable, ranks),
        check_stolen(files, found.stolen or seen.load),
        *check_barrier(found.speeds, seen.usable),
        check_clock(files, seen.clock_s),
        *starts(files, seen, ranks),
        check_huge_pages(files, found.copies.gain if found.copies else None),
        check_shm(seen.shm),
        check_cross_memory(files, seen.crosses_memory, found.reaches, crossing_gain(found.speeds)),
        check_threads(seen.environ, seen.usable, ranks),
        check_tuned(seen.tuned),
        check_address(seen.address, seen.outside, seen.interface, seen.environ),
        check_packets(files, seen.interface),
    ]
    return worst_first(every)


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """Problems, then advice, then what is fine."""
    order: Mapping[str, int] = {level: k for k, level in enumerate(LEVELS)}
    return sorted(findings, key=lambda one: order[one.level])
