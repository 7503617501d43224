"""All checks of a machine: what was seen, and for each topic a row that judges it."""

import ctypes
import errno
import ipaddress
import math
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import psutil

from ...base.config import Config
from ...base.errors import ArgumentError
from ...base.linux import Allowance, allowance
from ...base.units import format_bytes, plural
from ...engine.kernels import unit
from ...engine.machine_code import writable_folder
from ...engine.process.alive import read_word
from ...hosts.addresses import interfaces, own_address

_LOOK_S, _BUSY = 0.4, 0.25
"""How long to look at the load, and the least number of processors used by other programs to report."""
_MUCH_STOLEN = 0.02
_LITTLE, _MUCH = 64 << 20, 1 << 30
"""Free bytes for each rank: below _LITTLE staging areas may not fit, and from _MUCH on they surely do."""
_FEW_FILES, _MANY_FILES = 64, 1024
_NEWER = "run on Linux 5.3 or later, in a container whose filter for system calls allows it"
_CAP_SYS_PTRACE, _NOBODY = 19, 3  # of linux/capability.h; Yama's scope in which no right helps

Level = Literal["problem", "advice", "ok"]


class Finding(NamedTuple):
    """The result of a check.

    level: ok; advice: calls could be faster; problem: calls fail, or stop each other for long.
    topic: what was looked at.
    says: what was found.
    reason: why it matters.
    change: what to do.
    """

    level: Level
    topic: str
    says: str
    reason: str = ""
    change: str = ""


def judge(topic: str, says: str, good: bool, reason: str, change: str, *, broken: bool = False) -> Finding:
    """A finding: ok if good, else a problem if broken, else advice."""
    if good:
        return Finding("ok", topic, says)
    return Finding("problem" if broken else "advice", topic, says, reason, change)


class Load(NamedTuple):
    """The use of the processors by other programs, while this process is quiet for a moment.

    busy: the number of processors, on average.
    stolen: the share of all time that a hypervisor took.
    busiest: name and number of the process that used most; "" if there is none.
    """

    busy: float
    stolen: float
    busiest: str


def look_at_load() -> Load:
    before, shares = _used(), psutil.cpu_times_percent(_LOOK_S)
    used_s = {one: took_s - before.get(one, took_s) for one, took_s in _used().items()}
    busy = max(0.0, 100 - shares.idle - shares.iowait - shares.steal) / 100
    most = max(used_s, key=used_s.__getitem__, default="")
    return Load(busy * (os.cpu_count() or 1), shares.steal / 100, most if used_s.get(most) else "")


def _used() -> dict[str, float]:
    """Name and number of each other process -> the processor seconds that it has used."""
    used = {}
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            times = one.cpu_times()
            used[f"{one.name()}, {one.pid}"] = times.user + times.system
    used.pop(f"{psutil.Process().name()}, {os.getpid()}", None)
    return used


class Seen(NamedTuple):
    """A machine, and this process on it.

    usable: processors that this process may run on.
    address_space, files: the limits, or infinity.
    no_memfd, no_pidfd: why the system has none for this process, or "".
    crosses, may_read: would ranks read each other's memory, and may they?
    address, outside: from which address this host sends to `master`, and to other hosts; "": there is no route.
    interface: the interface with `address`.
    """

    processors: int
    cores: int
    usable: int
    load: Load
    allowed: Allowance
    total_bytes: int
    free_bytes: int
    address_space: float
    files: float
    heap_bytes: int
    no_memfd: str
    no_pidfd: str
    code_folder: Path | None
    code_kept: bool
    crosses: bool
    may_read: bool
    ptrace_scope: int
    filtered: bool
    threads: str
    master: str
    address: str
    outside: str
    interface: str


def look() -> Seen:
    """Look now. This process is quiet for a moment meanwhile, to see what other processes use."""
    try:
        config = Config.from_env()
    except ArgumentError:  # the first call says so
        config = Config()
    usable, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory()
    status = dict(line.partition(":\t")[::2] for line in _text("/proc/self/status").splitlines())
    scope = int(_text("/proc/sys/kernel/yama/ptrace_scope") or 0)
    capable = int(status.get("CapEff", "0"), 16) >> _CAP_SYS_PTRACE & 1
    master = os.environ.get("MASTER_ADDR", "")
    address = own_address(master)
    return Seen(
        processors=max(psutil.cpu_count() or 1, usable),
        cores=psutil.cpu_count(logical=False) or 0,
        usable=usable,
        load=look_at_load(),
        allowed=allowance(),
        total_bytes=memory.total,
        free_bytes=memory.available,
        address_space=_limit(resource.RLIMIT_AS),
        files=_limit(resource.RLIMIT_NOFILE),
        heap_bytes=config.heap_bytes or memory.total // 2,
        no_memfd=_refused("memfd_create", lambda: os.memfd_create("unisono probe", os.MFD_ALLOW_SEALING)),
        no_pidfd=_refused("pidfd_open", lambda: os.pidfd_open(os.getpid())),
        code_folder=writable_folder(),
        code_kept=unit("interpret.run").on_disk,
        crosses=config.cross_memory_bytes > 0,
        may_read=_reads_itself() and (scope == 0 or (capable > 0 and scope < _NOBODY)),
        ptrace_scope=scope,
        filtered=status.get("Seccomp") == "2",
        threads=os.environ.get("OMP_NUM_THREADS", ""),
        master=master,
        address=address,
        outside=own_address(""),
        interface=next((name for name, one in interfaces().items() if one == address), ""),
    )


def starts(seen: Seen, ranks: int) -> list[Finding]:
    """Can ranks start here at all?"""
    heaps, files = ranks * seen.heap_bytes, _FEW_FILES + 8 * ranks
    free, of, raised = seen.free_bytes, format_bytes(seen.total_bytes), "free memory"
    if seen.allowed.free_bytes is not None and seen.allowed.free_bytes < free:
        free, raised = seen.allowed.free_bytes, "allow more (docker run --memory)"
        of = f"the {format_bytes(seen.allowed.memory_bytes or 0)} of the control group"
    kept = f"{'kept' if seen.code_kept else 'will be kept'} in {seen.code_folder}"
    if seen.code_folder is None:
        kept = "installed" if seen.code_kept else "no folder for it can be written to"
    return [
        judge(
            "memfd",
            seen.no_memfd or "shared memory can be made",
            not seen.no_memfd,
            "all that ranks share is in memory of this kind; without it no group can be made",
            _NEWER if _text("/proc/sys/vm/memfd_noexec") != "2" else "as root: sysctl vm.memfd_noexec=1",
            broken=True,
        ),
        judge(
            "pidfd",
            seen.no_pidfd or "the end of a process is noticed",
            not seen.no_pidfd,
            "a rank notices by it that another one has died; without it no group can be made",
            _NEWER,
            broken=True,
        ),
        judge(
            "memory",
            f"{format_bytes(free)} of {of} free",
            free >= ranks * _MUCH,
            f"each of {plural(ranks, 'rank')} has its own model and gradients, and some megabytes for what it sends;"
            " a call for which there is no memory raises OutOfMemory",
            f"{raised}, or start fewer ranks",
            broken=free < ranks * _LITTLE,
        ),
        judge(
            "ulimit -v",
            f"{format_bytes(seen.address_space)} of address space" if seen.address_space < math.inf else "no limit",
            heaps + _MUCH <= seen.address_space,
            f"ranks map {format_bytes(heaps)}: {ranks} × {format_bytes(seen.heap_bytes)}, whether it is used or not",
            f"ulimit -v unlimited, or UNISONO_HEAP_BYTES={max(0, seen.address_space - _MUCH) // ranks // 2:.0f}",
            broken=True,
        ),
        judge(
            "ulimit -n",
            f"{seen.files} files" if seen.files < math.inf else "no limit",
            seen.files >= max(files, _MANY_FILES),
            "a process has one open for each rank that it watches, and torch's data loaders some for each batch",
            "ulimit -n 65536",
            broken=seen.files < files,
        ),
        judge(
            "machine code",
            kept,
            seen.code_folder is not None or seen.code_kept,
            "each process compiles for itself when it starts, some ten seconds and more",
            "set UNISONO_CACHE_DIR to a folder that all ranks of this host can write to",
            broken=True,
        ),
    ]


def surroundings(seen: Seen, ranks: int) -> list[Finding]:
    """Can ranks be fast here?"""
    usable, every = seen.usable, plural(ranks, "rank")
    said = plural(seen.processors, "processor")
    said += f" on {plural(seen.cores, 'core')}" if 0 < seen.cores < seen.processors else ""
    more = f"start {usable} ranks here, and the others on further hosts"
    if usable < seen.processors:
        said += f"; this process may use {usable}"
        more = "allow as many as ranks (taskset, cpuset, docker run --cpuset-cpus)"
    allowed = seen.allowed.processors
    time = (
        f"the control group has the time of {allowed:.3g} of {plural(usable, 'processor')}" if allowed else "no limit"
    )
    allowed = allowed or math.inf
    threads = int(seen.threads) if seen.threads.isdecimal() else 0
    many = f"OMP_NUM_THREADS={threads}: {every} have {threads * ranks} threads on {usable} processors"
    read = f"ranks may not read each other's memory (ptrace_scope is {seen.ptrace_scope})"
    allow = "docker run --cap-add SYS_PTRACE" if seen.filtered else "let all ranks run as one user"
    if seen.ptrace_scope:
        allow = "as root: sysctl kernel.yama.ptrace_scope=0, or give the processes CAP_SYS_PTRACE"
    if not seen.crosses or seen.may_read:
        read = f"ranks {'may' if seen.crosses else 'have no need to'} read each other's memory"
    return [
        judge(
            "processors",
            said if ranks <= usable else f"{said}, for {every}",
            ranks <= usable,
            "a rank that waits for one without a processor waits for a time slice, milliseconds, not for microseconds",
            more,
        ),
        judge(
            "quota",
            time,
            allowed >= min(usable, ranks),
            "ranks that wait use it up, and then all are stopped for the rest of a period, up to 100 ms",
            f"allow one for each of {every} (docker run --cpus {ranks}, CPUQuota={ranks}00%)",
            broken=allowed < min(2, ranks),
        ),
        check_load(seen.load, usable, ranks),
        judge(
            "virtual",
            f"a hypervisor takes {seen.load.stolen:.0%} of the time of these processors",
            seen.load.stolen < _MUCH_STOLEN,
            "a processor that is away holds up all ranks: no other one does its work meanwhile",
            "take a machine with processors of its own",
        ),
        judge(
            "ptrace",
            read,
            seen.may_read or not seen.crosses,
            "private tensors of 1 MiB and more are then copied twice, through a staging area",
            f"{allow}; or make tensors with unisono.empty, which need no copy",
        ),
        judge(
            "threads",
            many if threads else "OMP_NUM_THREADS is not set: torchrun and unisono run choose it",
            threads * ranks <= max(usable, ranks),
            "threads of one rank displace others, and all wait for the last",
            f"OMP_NUM_THREADS={max(1, usable // ranks)}",
        ),
        check_address(seen.master, seen.address, seen.outside, seen.interface),
    ]


def check_load(load: Load, usable: int, ranks: int) -> Finding:
    """Do other programs use the ranks' processors? usable: processors."""
    if load.busy < _BUSY:
        return Finding("ok", "load", "other programs are quiet")
    said, room = f"other programs use {load.busy:.1f} of {plural(usable, 'processor')}", load.busy + ranks <= usable
    said += ", which is room enough" if room else f" (most: {load.busiest})" if load.busiest else ""
    reason = "each call waits for the rank that has to share its processor"
    return judge("load", said, room, reason, "end them, or leave them processors of their own (taskset)")


def check_address(master: str, address: str, outside: str, interface: str) -> Finding:
    """Can other hosts reach this host at its address?"""
    if _reaches_others(address):
        return Finding(
            "ok", "address", f"{address} ({interface})" + (f" toward MASTER_ADDR={master}" if master else "")
        )
    lost, alone = bool(master) and not address, bool(master) and _reaches_others(outside)
    says = "no way leads there" if lost else "this host alone"
    return judge(
        "address",
        f"MASTER_ADDR={master}: {says}" if lost or alone else "none but loopback: for ranks of this host only",
        not lost and not alone,
        "ranks cannot meet" if lost else "ranks of other hosts would each look for it at home, and wait for ever",
        "name a host that this one can reach" if lost else f"for several hosts: MASTER_ADDR={outside}, on all of them",
    )


def _reaches_others(address: str) -> bool:
    with suppress(ValueError):
        return not ipaddress.ip_address(address).is_loopback
    return False


def _refused(name: str, attempt: Callable[[], int]) -> str:
    """Why the system does not do this; "" if it does."""
    try:
        os.close(attempt())
    except AttributeError:
        return f"{name}: this system has none"
    except OSError as error:
        return f"{name} is refused: {errno.errorcode.get(error.errno or 0, '')}, {error.strerror}"
    return ""


def _reads_itself() -> bool:
    """Does no filter for system calls refuse process_vm_readv?"""
    word = ctypes.c_int64()
    return read_word(os.getpid(), ctypes.addressof(word)) is not None


def _limit(which: int) -> float:
    limit, _ = resource.getrlimit(which)
    return math.inf if limit == resource.RLIM_INFINITY else limit


def _text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text().strip()
    return ""
