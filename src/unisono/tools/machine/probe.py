"""What is asked of this process and its surroundings, not read in a file."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...base.config import Config
from ...base.errors import ArgumentError
from ...base.tuning import TuningResults, measured
from ...engine.kernels import unit
from ...engine.machine_code import writable_folder
from ...hosts.addresses import interfaces, own_address
from .linux_files import Files
from .processor_time import TimeShares, look_at_load
from .rights import why_no_memfd, why_no_watching

_READINGS = 2000
_SHM = "/dev/shm"  # noqa: S108  it is only looked at


class Probed(NamedTuple):
    """usable: processors that this process may run on. load: what others use, in a moment. clock_s: of a reading
    of the clock. no_memfd, no_watching: why not, or "". address_space, files: the limits; None: none. heap_bytes: of a
    rank. crosses_memory: would ranks read each other's. shm: the size of /dev/shm. code_folder: where machine code can
    be kept, and code_kept: whether it is there. address: toward MASTER_ADDR; outside: toward anybody; interface: that
    of the address.
    """

    usable: int
    load: TimeShares
    clock_s: float
    no_memfd: str
    no_watching: str
    address_space: int | None
    files: int
    heap_bytes: int
    crosses_memory: bool
    shm: int | None
    python: str
    code_folder: Path | None
    code_kept: bool
    tuned: TuningResults | None
    environ: Mapping[str, str]
    address: str
    outside: str
    interface: str


def probe(files: Files) -> Probed:
    """Ask now. This process is quiet for a moment meanwhile, to see what others do."""
    load = look_at_load(files)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    opened, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    address, outside = own_address(os.environ.get("MASTER_ADDR", "")), own_address("")
    return Probed(
        usable=len(os.sched_getaffinity(0)),
        load=load,
        clock_s=_clock_s(),
        no_memfd=why_no_memfd(),
        no_watching=why_no_watching(),
        address_space=None if space == resource.RLIM_INFINITY else space,
        files=1 << 30 if opened == resource.RLIM_INFINITY else opened,
        heap_bytes=_config().heap_bytes or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2,
        crosses_memory=_config().cross_memory_bytes > 0,
        shm=_shm(),
        python=platform.python_version(),
        code_folder=writable_folder(),
        code_kept=unit("interpret.run").on_disk,
        tuned=measured(),
        environ=os.environ,
        address=address,
        outside=outside,
        interface=next((name for name, one in interfaces().items() if one == address), ""),
    )


def _config() -> Config:
    try:
        return Config.from_env()
    except ArgumentError:  # the first call says so
        return Config()


def _shm() -> int | None:
    with suppress(OSError):
        seen = os.statvfs(_SHM)
        return seen.f_blocks * seen.f_frsize
    return None


def _clock_s() -> float:
    begin = time.perf_counter()
    for _ in range(_READINGS):
        time.monotonic()
    return (time.perf_counter() - begin) / _READINGS
