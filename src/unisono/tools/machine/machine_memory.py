"""Memory: how much is free, what limits it, and on which pages it lies."""

from __future__ import annotations

from ...base.cgroups import Allowance
from ...base.units import format_bytes, plural
from .finding import Finding, advice, fine, problem
from .linux_files import Files

_LITTLE, _MUCH = 64 << 20, 1 << 30
"""Free bytes for each rank below which staging areas may not fit, and from which on nobody needs to think of them."""
_FEW_FILES, _MANY_FILES = 64, 1024
_SMALL_SHM = 1 << 30
_SHM = "/dev/shm"  # noqa: S108  nothing is written there
_WORTH = 0.03
"""From so much on, huge pages are worth a word."""
_HUGE = "sys/kernel/mm/transparent_hugepage/shmem_enabled"


def check_memory(files: Files, allowed: Allowance, ranks: int) -> Finding:
    """Is there memory for the ranks?"""
    total = files.kibibytes("proc/meminfo", "MemTotal")
    free = files.kibibytes("proc/meminfo", "MemAvailable")
    said = f"{format_bytes(free)} of {format_bytes(total)} free"
    change = "free memory, or start fewer ranks"
    if allowed.free_bytes is not None and allowed.memory_bytes is not None and allowed.free_bytes < free:
        free = allowed.free_bytes
        said = f"{format_bytes(free)} free of the {format_bytes(allowed.memory_bytes)} of the control group"
        change = "allow more (docker run --memory), or start fewer ranks"
    if free >= ranks * _MUCH:
        return fine("memory", said)
    found = problem if free < ranks * _LITTLE else advice
    reason = (
        f"each of {plural(ranks, 'rank')} has its own model and gradients, and some megabytes for what it sends;"
        " a call for which there is no memory raises OutOfMemory"
    )
    return found("memory", said, reason=reason, change=change)


def check_address_space(limit: int | None, heap_bytes: int, ranks: int) -> Finding:
    """Does the memory of a world fit into the address space? limit: of ulimit -v. heap_bytes: of each rank."""
    need = ranks * heap_bytes
    if limit is None:
        return fine("ulimit -v", "no limit")
    said = f"{format_bytes(limit)} of address space"
    if need + _MUCH <= limit:
        return fine("ulimit -v", said)
    return problem(
        "ulimit -v",
        said,
        reason=f"ranks map {format_bytes(need)}: {ranks} × {format_bytes(heap_bytes)}, whether it is used or not",
        change=f"ulimit -v unlimited, or UNISONO_HEAP_BYTES={max(0, limit - _MUCH) // ranks // 2}",
    )


def check_files(limit: int, ranks: int) -> Finding:
    """May a process open enough files? limit: of ulimit -n."""
    need = _FEW_FILES + 8 * ranks
    if limit >= max(need, _MANY_FILES):
        return fine("ulimit -n", f"{limit} files")
    found = problem if limit < need else advice
    return found(
        "ulimit -n",
        f"{limit} files",
        reason="a process has one open for each rank that it watches, and torch's data loaders some for each batch",
        change="ulimit -n 65536",
    )


def check_shm(size: int | None) -> Finding:
    """Is there room for what torch runs beside this library, which needs no /dev/shm? size: of it; None: none."""
    if size is not None and size >= _SMALL_SHM:
        return fine(_SHM, f"{format_bytes(size)}, for torch's data loaders; unisono needs none of it")
    says = "there is none" if size is None else format_bytes(size)
    return advice(
        _SHM,
        says,
        reason="torch's data loaders pass batches there, and die when it is full; unisono needs none of it",
        change="docker run --shm-size 8g, or num_workers=0",
    )


def check_huge_pages(files: Files, gain: float | None) -> Finding:
    """Does shared memory lie on huge pages? gain: of copies there, as a share of their time; None: not measured."""
    chosen = files.chosen(_HUGE) or "not known"
    if chosen in ("always", "within_size", "force"):
        return fine("huge pages", f"for shared memory: {chosen}")
    if gain is None or gain < _WORTH:
        what = "" if gain is None else ": copies would not be faster"
        return fine("huge pages", f"not for shared memory ({chosen}){what}")
    return advice(
        "huge pages",
        f"not for shared memory ({chosen})",
        reason="a processor looks up an address for every 4 KiB that it copies between ranks, not for every 2 MiB",
        change=f"as root: echo within_size > /{_HUGE}",
        gain=f"copies in shared memory take {gain:.0%} less time, as measured just now",
    )
