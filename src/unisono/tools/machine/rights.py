"""What the system allows: memory without a name, to watch processes, and to read the memory of other ranks."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from .finding import Finding, advice, fine, problem
from .linux_files import Files

_CAP_SYS_PTRACE = 19
_NOBODY = 3
"""Yama's scope in which no process may read another one's memory, whatever its rights."""


def check_memfd(files: Files, refused: str) -> Finding:
    """Can shared memory be made? refused: why not, or ""."""
    if not refused:
        return fine("memfd", "shared memory can be made")
    change = "run on Linux 5.3 or later, in a container whose filter allows memfd_create"
    if files.number("proc/sys/vm/memfd_noexec") == 2:
        change = "as root: sysctl vm.memfd_noexec=1"
    reason = "all that ranks share is in memory of this kind; without it no group can be made"
    return problem("memfd", f"memfd_create is refused: {refused}", reason=reason, change=change)


def check_watching(refused: str) -> Finding:
    """Can ranks watch each other? refused: why not, or ""."""
    if not refused:
        return fine("pidfd", "the end of a process is noticed")
    return problem(
        "pidfd",
        f"pidfd_open is refused: {refused}",
        reason="a rank notices by it that another one has died; no group can be made without",
        change="run on Linux 5.3 or later, in a container whose filter allows pidfd_open",
    )


def check_cross_memory(files: Files, used: bool, reaches: bool | None, gain: str) -> Finding:
    """May ranks read each other's memory? used: would they. reaches: what they found; None: none was asked. gain: as
    measured, or "".
    """
    if not used:
        return fine("ptrace", "ranks have no need to read each other's memory: tensors are staged here")
    scope = files.number("proc/sys/kernel/yama/ptrace_scope") or 0
    capable = int(files.field("proc/self/status", "CapEff") or "0", 16) >> _CAP_SYS_PTRACE & 1
    if reaches or (reaches is None and (scope == 0 or (capable and scope < _NOBODY))):
        return fine("ptrace", "ranks may read each other's memory" + (f": {gain}" if gain else ""))
    if scope:
        says = f"ranks may not read each other's memory (ptrace_scope is {scope})"
        change = "as root: sysctl kernel.yama.ptrace_scope=0, or give the processes CAP_SYS_PTRACE"
    else:
        says = "ranks may not read each other's memory"
        filtered = files.field("proc/self/status", "Seccomp") == "2"
        change = "docker run --cap-add SYS_PTRACE" if filtered else "let all ranks run as one user"
    return advice(
        "ptrace",
        says,
        reason="private tensors of 1 MiB and more are then copied twice, through a staging area",
        change=f"{change}; or make tensors with unisono.empty, which need no copy",
    )


def why_no_memfd() -> str:
    """Why memory without a name cannot be made; "" if it can."""
    if not hasattr(os, "memfd_create"):
        return "this system has none"
    try:
        os.close(os.memfd_create("unisono probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except OSError as error:
        return _words(error)
    return ""


def why_no_watching() -> str:
    """Why processes cannot be watched; "" if they can."""
    if not hasattr(os, "pidfd_open"):
        return "this system has none"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return _words(error)
    return ""


def _words(error: OSError) -> str:
    with suppress(KeyError, TypeError):
        return f"{errno.errorcode[error.errno or 0]}, {error.strerror}"
    return str(error)
