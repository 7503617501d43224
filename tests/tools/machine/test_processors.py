"""Findings about processors, each both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from unisono.base.cgroups import Allowance
from unisono.tools.machine import Files, look_at_time, shares_between
from unisono.tools.machine.processor_time import TimeShares
from unisono.tools.machine.processors import check_clock, check_load, check_processors, check_quota, check_stolen

Tree = Callable[[Mapping[str, str]], Files]

CLOCK = "sys/devices/system/clocksource/clocksource0"
NO_QUOTA = Allowance(None, None, None)
QUIET = TimeShares(0.1, 0.0, "")


def processors(threads: int, cores: int, nodes: int = 1) -> dict[str, str]:
    """The files of so many processors, which share cores."""
    found = {f"sys/devices/system/node/node{k}/cpulist": "" for k in range(nodes)}
    for k in range(threads):
        place = f"sys/devices/system/cpu/cpu{k}/topology"
        found[f"{place}/physical_package_id"] = str(k % cores * nodes // cores)
        found[f"{place}/core_id"] = str(k % cores)
    return found


def test_processors_cores_and_nodes_are_counted(tree: Tree) -> None:
    found = check_processors(tree(processors(8, 4, 2)), usable=8, ranks=8)
    assert (found.level, found.says) == ("ok", "8 processors on 4 cores, 2 NUMA nodes")


def test_who_may_use_fewer_than_ranks_is_told(tree: Tree) -> None:
    files = tree(processors(4, 4) | {"sys/devices/system/cpu/cpu4/online": "0"})
    assert check_processors(files, usable=2, ranks=2).says == "4 processors; this process may use 2"
    found = check_processors(files, usable=1, ranks=2)
    assert (found.level, found.says) == ("advice", "4 processors; this process may use 1, for 2 ranks")
    assert "taskset" in found.change
    found = check_processors(files, usable=4, ranks=6)
    assert found.level == "advice"
    assert found.change == "start 4 ranks here, and the others on further hosts"


@pytest.mark.parametrize(
    ("quota", "usable", "ranks", "level"),
    [(None, 4, 4, "ok"), (8.0, 4, 4, "ok"), (2.0, 4, 2, "ok"), (2.5, 4, 4, "advice"), (1.5, 4, 2, "problem")],
)
def test_a_quota_below_the_ranks_stops_all(quota: float | None, usable: int, ranks: int, level: str) -> None:
    found = check_quota(Allowance(quota, None, None), usable, ranks)
    assert found.level == level
    if level != "ok":
        assert f"{quota:.3g} of {usable} processors" in found.says
        assert f"--cpus {ranks}" in found.change


def test_other_programs_are_named() -> None:
    busy = TimeShares(1.26, 0.0, "make, 17")
    assert check_load(QUIET, 2, ranks=2).level == "ok"
    assert check_load(busy, 8, ranks=4).level == "ok", "there is room"
    found = check_load(busy, 2, ranks=2)
    assert (found.level, found.says) == ("advice", "other programs use 1.3 of 2 processors (most: make, 17)")


@pytest.mark.parametrize(
    ("flags", "says"), [("fpu hypervisor lm", "a virtual machine"), ("fpu lm", "nobody takes time")]
)
def test_time_that_a_hypervisor_takes(tree: Tree, flags: str, says: str) -> None:
    files = tree({"proc/cpuinfo": f"processor\t: 0\nflags\t\t: {flags}\n"})
    found = check_stolen(files, QUIET)
    assert found.level == "ok"
    assert found.says.startswith(says)
    found = check_stolen(files, TimeShares(0.1, 0.07, ""))
    assert found.level == "advice"
    assert "7%" in found.says


def test_a_clock_that_asks_the_kernel_is_told(tree: Tree) -> None:
    files = tree({f"{CLOCK}/current_clocksource": "tsc\n", f"{CLOCK}/available_clocksource": "tsc hpet\n"})
    assert check_clock(files, 50e-9).level == "ok"
    assert check_clock(files, 2e-6).level == "advice", "whatever it is called, it is slow"
    files = tree({f"{CLOCK}/current_clocksource": "hpet\n"})
    found = check_clock(files, 50e-9)
    assert found.level == "advice"
    assert "clocksource=tsc" in found.change
    files = tree({f"{CLOCK}/available_clocksource": "hpet acpi_pm\n"})
    assert "ask whoever runs the machine" in check_clock(files, 50e-9).change


def stat(user: int, idle: int, stolen: int) -> str:
    return f"cpu  {user} 0 0 {idle} 0 0 0 {stolen} 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"


def process(name: str, ticks: int) -> str:
    return f"17 ({name}) S 1 17 17 0 -1 4194560 1 0 0 0 {ticks - 1} 1 0 0 20 0 1 0 5 0 0\n"


def test_shares_of_the_time_between_two_looks(tree: Tree) -> None:
    before = look_at_time(
        tree({"proc/stat": stat(100, 1000, 10), "proc/17/stat": process("a) b", 50), "proc/18/stat": process("c", 9)})
    )
    after = look_at_time(
        tree({"proc/stat": stat(250, 1040, 20), "proc/17/stat": process("a) b", 170), "proc/18/stat": process("c", 19)})
    )
    assert shares_between(before, after, 2) == TimeShares(1.5, 0.05, "a) b, 17")
    assert shares_between(after, after, 2) == TimeShares(0.0, 0.0, "")


def test_a_machine_that_tells_nothing_is_quiet(tree: Tree) -> None:
    seen = look_at_time(tree({}))
    assert shares_between(seen, seen, 1) == TimeShares(0.0, 0.0, "")
