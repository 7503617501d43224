"""Findings about a machine, each both ways."""

import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest

from unisono.base.linux import Allowance
from unisono.tools.machine import checks
from unisono.tools.machine.checks import Finding, Load, Seen, look, look_at_load, starts, surroundings

GIB, MIB = 1 << 30, 1 << 20

GOOD = Seen(
    processors=4,
    cores=4,
    usable=4,
    load=Load(0.1, 0.0, ""),
    allowed=Allowance(None, None, None),
    total_bytes=16 * GIB,
    free_bytes=8 * GIB,
    address_space=math.inf,
    files=1024,
    heap_bytes=8 * GIB,
    no_memfd="",
    no_pidfd="",
    code_folder=Path("/cache"),
    code_kept=True,
    crosses=True,
    may_read=True,
    ptrace_scope=0,
    filtered=False,
    threads="",
    master="",
    address="10.1.2.3",
    outside="10.1.2.3",
    interface="eth0",
)


def find(topic: str, ranks: int, **other: Any) -> Finding:
    """What is found of this topic on a machine that is good but for some facts."""
    seen = GOOD._replace(**other)
    return next(one for one in [*starts(seen, ranks), *surroundings(seen, ranks)] if one.topic == topic)


def test_a_machine_with_nothing_to_change() -> None:
    assert {one.level for one in [*starts(GOOD, 4), *surroundings(GOOD, 4)]} == {"ok"}


FOUND: list[tuple[str, int, dict[str, Any], str, str]] = [
    ("processors", 4, {"processors": 8, "cores": 4, "usable": 8}, "ok", "8 processors on 4 cores"),
    ("processors", 2, {"usable": 2}, "ok", "4 processors; this process may use 2"),
    ("processors", 2, {"usable": 1}, "advice", "taskset"),
    ("processors", 6, {}, "advice", "start 4 ranks here, and the others on further hosts"),
    ("quota", 4, {"allowed": Allowance(8.0, None, None)}, "ok", "8 of 4 processors"),
    ("quota", 2, {"allowed": Allowance(2.0, None, None)}, "ok", "2 of 4 processors"),
    ("quota", 4, {"allowed": Allowance(2.5, None, None)}, "advice", "--cpus 4"),
    ("quota", 2, {"allowed": Allowance(1.5, None, None)}, "problem", "1.5 of 4 processors"),
    ("load", 2, {"load": Load(1.26, 0.0, "make, 17")}, "ok", "room enough"),
    ("load", 4, {"load": Load(1.26, 0.0, "make, 17")}, "advice", "1.3 of 4 processors (most: make, 17)"),
    ("virtual", 4, {"load": Load(0.1, 0.07, "")}, "advice", "7%"),
    ("memfd", 4, {"no_memfd": "memfd_create is refused: EPERM"}, "problem", "memfd_create is refused: EPERM"),
    ("pidfd", 4, {"no_pidfd": "pidfd_open: this system has none"}, "problem", "Linux 5.3"),
    ("memory", 4, {}, "ok", "8 GiB of 16 GiB free"),
    ("memory", 4, {"free_bytes": GIB}, "advice", "start fewer ranks"),
    ("memory", 4, {"free_bytes": 100 * MIB}, "problem", "100 MiB"),
    ("memory", 2, {"allowed": Allowance(None, GIB, 64 * MIB)}, "problem", "64 MiB of the 1 GiB of the control group"),
    ("memory", 2, {"allowed": Allowance(None, GIB, 64 * MIB)}, "problem", "--memory"),
    ("memory", 4, {"allowed": Allowance(None, 64 * GIB, 60 * GIB)}, "ok", "8 GiB of 16 GiB free"),
    ("ulimit -v", 4, {"address_space": 40 * GIB}, "ok", "40 GiB"),
    ("ulimit -v", 4, {"address_space": 16 * GIB}, "problem", "4 × 8 GiB"),
    ("ulimit -n", 8, {"files": math.inf}, "ok", "no limit"),
    ("ulimit -n", 8, {"files": 512}, "advice", "512 files"),
    ("ulimit -n", 8, {"files": 90}, "problem", "ulimit -n 65536"),
    ("machine code", 4, {}, "ok", "kept in /cache"),
    ("machine code", 4, {"code_kept": False}, "ok", "will be kept in /cache"),
    ("machine code", 4, {"code_folder": None}, "ok", "installed"),
    ("machine code", 4, {"code_folder": None, "code_kept": False}, "problem", "UNISONO_CACHE_DIR"),
    ("ptrace", 4, {"may_read": False, "crosses": False}, "ok", "no need"),
    ("ptrace", 4, {"may_read": False, "ptrace_scope": 1}, "advice", "ptrace_scope=0"),
    ("ptrace", 4, {"may_read": False, "filtered": True}, "advice", "--cap-add SYS_PTRACE"),
    ("ptrace", 4, {"may_read": False}, "advice", "as one user"),
    ("threads", 4, {"usable": 8, "threads": "2"}, "ok", "OMP_NUM_THREADS=2"),
    ("threads", 8, {"usable": 2, "threads": "1"}, "ok", "OMP_NUM_THREADS=1"),  # fewer are not possible
    ("threads", 4, {"usable": 8, "threads": "8"}, "advice", "OMP_NUM_THREADS=2"),
    ("address", 4, {}, "ok", "10.1.2.3 (eth0)"),
    ("address", 4, {"master": "node0"}, "ok", "10.1.2.3 (eth0) toward MASTER_ADDR=node0"),
    ("address", 4, {"address": "", "outside": ""}, "ok", "loopback"),
    ("address", 4, {"master": "localhost", "address": "127.0.0.1"}, "advice", "MASTER_ADDR=10.1.2.3, on all"),
    ("address", 4, {"master": "localhost", "address": "127.0.0.1", "outside": ""}, "ok", "loopback"),
    ("address", 4, {"master": "nowhere", "address": ""}, "advice", "ranks cannot meet"),
]
"""Topic, ranks, what is different on this machine, the level, and words that are said."""


@pytest.mark.parametrize(("topic", "ranks", "other", "level", "words"), FOUND)
def test_a_finding_of_each_topic_both_ways(
    topic: str, ranks: int, other: dict[str, Any], level: str, words: str
) -> None:
    found = find(topic, ranks, **other)
    assert found.level == level
    assert words in " ".join(found)
    assert (found.reason != "") == (found.change != "") == (level != "ok")


def test_what_is_advised_for_little_address_space_helps() -> None:
    change = find("ulimit -v", 4, address_space=16 * GIB).change
    heap = int(change.rpartition("=")[2])
    assert find("ulimit -v", 4, address_space=16 * GIB, heap_bytes=heap).level == "ok"


def test_a_filter_for_system_calls_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "read_word", lambda *_: None)
    assert not look().may_read


def test_what_this_system_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look()
    assert seen.no_memfd == seen.no_pidfd == ""
    assert 0 < seen.free_bytes <= seen.total_bytes
    assert 0 < seen.usable <= seen.processors

    def refused(*_: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    monkeypatch.delattr(os, "pidfd_open")
    seen = look()
    assert seen.no_memfd == "memfd_create is refused: EPERM, Operation not permitted"
    assert seen.no_pidfd == "pidfd_open: this system has none"


def test_another_program_is_seen_and_this_one_is_not() -> None:
    assert f", {os.getpid()}" not in look_at_load().busiest
