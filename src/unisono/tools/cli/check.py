"""`unisono check`: what on this machine makes calls fail or slow, and what to change."""

import ctypes
import math
import os
import platform
import re
import resource
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import requires, version
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import psutil
import typer
from rich.text import Text

from ... import __version__
from ...base.config import Config
from ...base.linux import free_bytes, memory_nodes, model, processors, quota
from ...base.release import NAME
from ...base.units import format_bytes, plural
from ...engine.kept import writable_folder
from ...engine.kernels import unit
from ...engine.process.alive import read_word
from .shared.printing import console, plain_table

_LITTLE, _MUCH = 64 << 20, 1 << 30
"""Free bytes per rank: staging areas may not fit below _LITTLE, and surely fit from _MUCH on."""
_CAP_SYS_PTRACE, _NOBODY = 19, 3  # from linux/capability.h; the ptrace_scope in which no capability helps
_COLOURS = {"problem": "bold red", "advice": "yellow", "ok": "green"}  # worst first


class Finding(NamedTuple):
    """The result of a check.

    level: problem: calls fail, or all ranks stop for long; advice: calls could be faster.
    says: the observation. reason: why it matters. change: what to do.
    """

    level: Literal["problem", "advice", "ok"]
    topic: str
    says: str
    reason: str = ""
    change: str = ""


class Seen(NamedTuple):
    """A machine, and the limits of this process on it.

    usable: the processors that this process may run on. nodes: the memory nodes (NUMA) that these are on.
    no_memfd, no_pidfd: why the system call fails, or "".
    heap_bytes: the setting; 0: as much as fits.
    crosses, may_read: do calls read the memory of other ranks, and does the system allow it?
    """

    usable: int
    nodes: int
    quota: float | None
    free_bytes: int
    group_free_bytes: int | None
    address_space: float
    heap_bytes: int
    no_memfd: str
    no_pidfd: str
    code_folder: Path | None
    code_kept: bool
    crosses: bool
    may_read: bool
    ptrace_scope: int
    torch: str


def look() -> Seen:
    """Look at the machine. Starts no process and times no call. Raises ArgumentError for a wrong setting."""
    config = Config.from_env()
    memory, (most, _) = psutil.virtual_memory(), resource.getrlimit(resource.RLIMIT_AS)
    scope, word = int(_text("/proc/sys/kernel/yama/ptrace_scope") or 0), ctypes.c_int64()
    capable = re.search(r"^CapEff:\s*(\w+)", _text("/proc/self/status"), re.MULTILINE)
    traces = bool(capable and int(capable[1], 16) >> _CAP_SYS_PTRACE & 1)
    reads_itself = read_word(os.getpid(), ctypes.addressof(word)) is not None  # no seccomp filter forbids it
    return Seen(
        usable=len(os.sched_getaffinity(0)),
        nodes=memory_nodes(),
        quota=quota(),
        free_bytes=memory.available,
        group_free_bytes=free_bytes(),
        address_space=math.inf if most == resource.RLIM_INFINITY else most,
        heap_bytes=config.heap_bytes,
        no_memfd=_refused("memfd_create", lambda: os.memfd_create("unisono probe", os.MFD_ALLOW_SEALING)),
        no_pidfd=_refused("pidfd_open", lambda: os.pidfd_open(os.getpid())),
        code_folder=writable_folder(),
        code_kept=unit("interpret.run").on_disk,
        crosses=config.cross_memory_bytes > 0,
        may_read=reads_itself and (scope == 0 or (traces and scope < _NOBODY)),
        ptrace_scope=scope,
        torch=version("torch"),
    )


def findings(seen: Seen, ranks: int) -> list[Finding]:
    """Judge each topic for this number of ranks, the worst first."""
    found: list[Finding] = []

    def judge(topic: str, says: str, good: bool, reason: str, change: str, *, broken: bool = True) -> None:
        level: Literal["problem", "advice"] = "problem" if broken else "advice"
        found.append(Finding("ok", topic, says) if good else Finding(level, topic, says, reason, change))

    newer = "run on Linux 5.3 or later, in a container whose seccomp filter allows it"
    judge("memfd", seen.no_memfd or "allowed", not seen.no_memfd, "ranks cannot share memory without it", newer)
    judge("pidfd", seen.no_pidfd or "allowed", not seen.no_pidfd, "ranks cannot notice deaths without it", newer)

    left = seen.group_free_bytes
    free = seen.free_bytes if left is None else min(left, seen.free_bytes)
    says, good = f"{format_bytes(free)} free", free >= ranks * _MUCH
    reason = f"{plural(ranks, 'rank')} share it; a call without memory raises OutOfMemory"
    change = f"{'free memory' if free != left else 'allow more (docker run --memory)'}, or start fewer ranks"
    judge("memory", says, good, reason, change, broken=free < ranks * _LITTLE)

    heaps, limit = ranks * seen.heap_bytes, seen.address_space
    says = "unlimited" if limit == math.inf else f"limited to {format_bytes(limit)}"
    reason, change = "a rank with its libraries needs more", "ulimit -v unlimited"
    if heaps:
        reason = f"ranks map {format_bytes(heaps)}: {ranks} × {format_bytes(seen.heap_bytes)}, used or not"
        change += ", or unset UNISONO_HEAP_BYTES"
    judge("address space", says, heaps + _MUCH <= limit, reason, change)

    folder = seen.code_folder
    says = f"in {folder}" if folder else "installed" if seen.code_kept else "no writable folder"
    reason = "each process compiles the kernels when it starts, which takes ten seconds or more"
    change = "set UNISONO_CACHE_DIR to a folder that all ranks of this host can write to"
    judge("machine code", says, folder is not None or seen.code_kept, reason, change)

    needs = next((line for line in requires(NAME) or () if line.startswith("torch")), "torch")
    (least, under), (release, *_) = sorted(_versions(needs)), _versions(seen.torch)
    reason = "the backend uses private names of torch, which move between versions"
    judge("torch", seen.torch, least <= release < under, reason, f"pip install '{needs}'")

    says = f"{seen.usable} usable"
    change = "start the other ranks on further hosts, or allow more (taskset, docker run --cpuset-cpus)"
    reason = f"{plural(ranks, 'rank')} share them, so calls take milliseconds instead of microseconds"
    judge("processors", says, ranks <= seen.usable, reason, change, broken=False)

    says = f"processors of {plural(max(1, seen.nodes), 'node')}"
    reason = "a rank that Linux moves to another node reads all its memory over the link between them"
    change = "bind each rank to a node (numactl --cpunodebind=0 --membind=0 python train.py)"
    judge("memory nodes", says, seen.nodes <= 1, reason, change, broken=False)

    time = seen.quota or math.inf
    says = f"the time of {time:.3g} processors" if time < math.inf else "unlimited"
    reason = "ranks share it, and when it is used up, all of them stop for up to 100 ms"
    change = f"allow one processor per rank (docker run --cpus {ranks}, CPUQuota={ranks}00%)"
    judge("quota", says, time >= min(seen.usable, ranks), reason, change, broken=time < min(2, ranks))

    says = "allowed" if seen.may_read else f"forbidden (ptrace_scope is {seen.ptrace_scope})"
    reason = "private tensors of 1 MiB and more are copied twice"
    change = "as root: sysctl kernel.yama.ptrace_scope=0" if seen.ptrace_scope else "docker run --cap-add SYS_PTRACE"
    good = seen.may_read or not seen.crosses
    judge("ptrace", says if seen.crosses else "not needed", good, reason, f"{change}, or unisono.empty()", broken=False)
    return sorted(found, key=lambda one: [*_COLOURS].index(one.level))


def check(
    *,
    ranks: Annotated[int, typer.Option(min=0, help="Number of ranks; 0: one per processor.")] = 0,
) -> None:
    """List what makes calls fail or slow on this machine, and what to change.

    The exit status is 1 if there is a problem: calls would fail, or all ranks would stop for long.
    """
    ranks = ranks or max(2, processors())
    found = findings(look(), ranks)
    out, table = console(), plain_table("", f"for {plural(ranks, 'rank')}", "")
    packages = f"Python {platform.python_version()} · numba {version('numba')} · unisono {__version__}"
    out.print(f"{model()} · Linux {platform.release()} · {packages}\n", soft_wrap=True)
    for one in found:
        text = Text(one.says)
        if one.change:
            text.append(f"\n{one.reason}", "dim").append(f"\n→ {one.change}")
        table.add_row(Text(one.level, _COLOURS[one.level]), one.topic, text)
    out.print(table)
    if found[0].level == "problem":
        raise typer.Exit(1)


def _refused(name: str, attempt: Callable[[], int]) -> str:
    """Why the system does not do this; "" if it does."""
    try:
        os.close(attempt())
    except (AttributeError, OSError) as error:
        return f"{name} fails: {error}"
    return ""


def _versions(text: str) -> list[tuple[int, int]]:
    return [(int(major), int(minor)) for major, minor in re.findall(r"(\d+)\.(\d+)", text)]


def _text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text().strip()
    return ""
