"""This package: its name, its version, which its build reads here, too, and where it runs."""

import os
import sys

NAME = "unisono"
"""The name for `init_process_group`, and the prefix of profiler events."""

__version__ = "0.1.0"

RUNS = sys.platform == "linux"
"""Can ranks run here at all? Tables can be made, proved and drawn anyway."""


def unsupported() -> str | None:
    """What is missing on this system, as a sentence; None: nothing."""
    machine = os.uname().machine if RUNS else ""
    if machine == "x86_64":
        return None
    import platform

    missing = {
        "": "memfd, futexes and process descriptors are missing",
        "aarch64": "its kernels have been tried there in an emulator only",
    }.get(machine, "its kernels have not been tried there")
    here = f"{platform.system()} on {platform.machine()}"
    return f"unisono is made for Linux on x86-64, and this is {here}: {missing}. torch's Gloo runs here."
