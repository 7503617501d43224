"""Processors: how many there are, which of them this process may use, and how much of their time."""

from __future__ import annotations

from ...base.cgroups import Allowance
from ...base.units import format_seconds, plural
from .finding import Finding, advice, fine, problem
from .linux_files import Files
from .processor_time import TimeShares

_TURNS = "a rank that waits for one without a processor waits for a time slice, milliseconds, not for microseconds"
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "xen")
_SLOW_READING_S = 0.5e-6
_MUCH_OF_OTHERS, _MUCH_STOLEN = 0.25, 0.02
"""Processors that other programs use, and the share of the time that other guests have, from which on it is told."""


def check_processors(files: Files, usable: int, ranks: int) -> Finding:
    """Are there as many processors as ranks? usable: how many this process may run on."""
    every = files.folders("sys/devices/system/cpu/cpu[0-9]*/topology")
    places = {
        (files.text(f"{path}/physical_package_id"), files.text(f"{path}/core_id"))
        for path in (str(folder.relative_to(files.root)) for folder in every)
    }
    cores = len(places - {("", "")})
    nodes = len(files.folders("sys/devices/system/node/node[0-9]*"))
    total = max(len(every), usable)
    said = plural(total, "processor")
    if 0 < cores < total:
        said += f" on {plural(cores, 'core')}"
    if nodes > 1:
        said += f", {nodes} NUMA nodes"
    if usable < total:
        said += f"; this process may use {usable}"
    if ranks <= usable:
        return fine("processors", said)
    where = "as many as ranks" if usable < total else f"{usable} ranks here, and the others on further hosts"
    change = f"allow {where} (taskset, cpuset, docker run --cpuset-cpus)" if usable < total else f"start {where}"
    return advice("processors", f"{said}, for {plural(ranks, 'rank')}", reason=_TURNS, change=change)


def check_quota(allowed: Allowance, usable: int, ranks: int) -> Finding:
    """Does the control group give the ranks the time of a processor each?"""
    if allowed.processors is None or allowed.processors >= usable:
        return fine("quota", "no limit to processor time")
    says = f"the control group has the time of {allowed.processors:.3g} of {plural(usable, 'processor')}"
    if allowed.processors >= ranks:
        return fine("quota", says)
    reason = "ranks that wait use it up, and then all are stopped for the rest of a period, up to 100 ms"
    change = f"allow one for each of {plural(ranks, 'rank')} (docker run --cpus {ranks}, CPUQuota={ranks}00%)"
    found = problem if allowed.processors < min(2, ranks) else advice
    return found("quota", says, reason=reason, change=change)


def check_load(shares: TimeShares, usable: int, ranks: int) -> Finding:
    """Do other programs use the ranks' processors? shares: of a moment in which this one did not."""
    if shares.busy < _MUCH_OF_OTHERS:
        return fine("load", "other programs are quiet")
    if shares.busy + ranks <= usable:
        return fine(
            "load", f"other programs use {shares.busy:.1f} of {plural(usable, 'processor')}, which is room enough"
        )
    who = f" (most: {shares.busiest})" if shares.busiest else ""
    return advice(
        "load",
        f"other programs use {shares.busy:.1f} of {plural(usable, 'processor')}{who}",
        reason="each call waits for the rank that has to share its processor; what is measured below suffers, too",
        change="end them, or leave them processors of their own (taskset)",
    )


def check_stolen(files: Files, shares: TimeShares) -> Finding:
    """Does a hypervisor give the time of these processors to others?"""
    virtual = "hypervisor" in files.field("proc/cpuinfo", "flags").split()
    if shares.stolen < _MUCH_STOLEN:
        return fine(
            "virtual",
            "a virtual machine, which has its processors" if virtual else "nobody takes time of these processors",
        )
    return advice(
        "virtual",
        f"the host of this virtual machine takes {shares.stolen:.0%} of its time for others",
        reason="a processor that is away holds up all ranks: no other one does its work meanwhile",
        change="take a machine with processors of its own",
    )


def check_clock(files: Files, reading_s: float) -> Finding:
    """Can the clock be read without the kernel? reading_s: what a reading takes in Python."""
    source = files.text("sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    if source not in _SLOW_CLOCKS and reading_s < _SLOW_READING_S:
        return fine("clock", f"{source}, {format_seconds(reading_s)} a reading")
    others = files.text("sys/devices/system/clocksource/clocksource0/available_clocksource").split()
    change = "let the kernel use tsc (clocksource=tsc on its command line)"
    if "tsc" not in others:
        change = "ask whoever runs the machine for one whose cycle counter the kernel trusts"
    return advice(
        "clock",
        f"{source}, {format_seconds(reading_s)} a reading",
        reason="each wait that is not over at once reads it, and so does whatever measures",
        change=change,
    )
