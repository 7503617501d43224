"""`unisono check`: each finding both ways, and what it prints."""

import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.say import flat
from unisono.base.linux import memory_nodes
from unisono.tools.cli import check
from unisono.tools.cli.check import Seen, findings, look

GIB, MIB = 1 << 30, 1 << 20

GOOD = Seen(
    usable=4,
    nodes=1,
    quota=None,
    free_bytes=8 * GIB,
    group_free_bytes=None,
    address_space=math.inf,
    heap_bytes=8 * GIB,
    no_memfd="",
    no_pidfd="",
    code_folder=Path("/cache"),
    code_kept=True,
    crosses=True,
    may_read=True,
    ptrace_scope=0,
    torch="2.13.0+cpu",
)


FOUND: list[tuple[str, int, dict[str, Any], str, str]] = [
    ("memfd", 4, {"no_memfd": "memfd_create fails: EPERM"}, "problem", "memfd_create fails: EPERM"),
    ("pidfd", 4, {"no_pidfd": "pidfd_open fails: none"}, "problem", "Linux 5.3"),
    ("memory", 4, {}, "ok", "8 GiB free"),
    ("memory", 4, {"free_bytes": GIB}, "advice", "free memory, or start fewer ranks"),
    ("memory", 4, {"free_bytes": 100 * MIB}, "problem", "100 MiB"),
    ("memory", 2, {"group_free_bytes": 64 * MIB}, "problem", "64 MiB free"),
    ("memory", 2, {"group_free_bytes": 64 * MIB}, "problem", "--memory"),
    ("memory", 4, {"group_free_bytes": 60 * GIB}, "ok", "8 GiB free"),
    ("address space", 4, {"address_space": 40 * GIB}, "ok", "40 GiB"),
    ("address space", 4, {"address_space": 16 * GIB}, "problem", "unset UNISONO_HEAP_BYTES"),
    ("address space", 4, {"address_space": 16 * GIB, "heap_bytes": 0}, "ok", "limited to 16 GiB"),
    ("address space", 4, {"address_space": GIB // 2, "heap_bytes": 0}, "problem", "ulimit -v unlimited"),
    ("machine code", 4, {"code_kept": False}, "ok", "in /cache"),
    ("machine code", 4, {"code_folder": None}, "ok", "installed"),
    ("machine code", 4, {"code_folder": None, "code_kept": False}, "problem", "UNISONO_CACHE_DIR"),
    ("torch", 4, {"torch": "1.13.1"}, "problem", "pip install 'torch<"),
    ("torch", 4, {"torch": "3.0.0.dev20270101+cpu"}, "problem", "3.0.0"),
    ("processors", 2, {"usable": 2}, "ok", "2 usable"),
    ("processors", 6, {}, "advice", "start the other ranks on further hosts"),
    ("memory nodes", 4, {"nodes": 0}, "ok", "1 node"),  # a system that tells none
    ("memory nodes", 4, {"nodes": 2}, "advice", "--membind=0"),
    ("quota", 4, {"quota": 8.0}, "ok", "8 processors"),
    ("quota", 4, {"quota": 2.5}, "advice", "--cpus 4"),
    ("quota", 2, {"quota": 1.5}, "problem", "1.5 processors"),
    ("ptrace", 4, {"may_read": False, "crosses": False}, "ok", "not needed"),
    ("ptrace", 4, {"may_read": False, "ptrace_scope": 1}, "advice", "ptrace_scope=0"),
    ("ptrace", 4, {"may_read": False}, "advice", "--cap-add SYS_PTRACE"),
]
"""Topic, ranks, what differs from GOOD, the level, and words of the finding."""


@pytest.mark.parametrize(("topic", "ranks", "other", "level", "words"), FOUND)
def test_each_finding(topic: str, ranks: int, other: dict[str, Any], level: str, words: str) -> None:
    every = {one.topic: one for one in findings(GOOD._replace(**other), ranks)}
    found = every.pop(topic)
    assert found.level == level
    assert ranks > 4 or {one.level for one in every.values()} <= {"ok"}
    assert words in " ".join(found)
    assert (found.reason != "") == (found.change != "") == (level != "ok")


def test_nodes_have_a_processor_of_this_process(tmp_path: Path) -> None:
    for node, number in enumerate([*sorted(os.sched_getaffinity(0))[:2], 99999]):
        (tmp_path / f"sys/devices/system/node/node{node}/cpu{number}").mkdir(parents=True)
    assert memory_nodes(tmp_path) == min(2, len(os.sched_getaffinity(0)))
    assert look().nodes == memory_nodes()
    assert (look().nodes > 0) == any(Path("/sys/devices/system/node").glob("node[0-9]*"))


def test_look_sees_refused_system_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look()
    assert seen.no_memfd == seen.no_pidfd == ""

    def refused(*_: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.setattr(check, "read_word", lambda *_: None)
    seen = look()
    assert seen.no_memfd == "memfd_create fails: [Errno 1] Operation not permitted"
    assert seen.no_pidfd.startswith("pidfd_open fails: ")
    assert not seen.may_read


@pytest.mark.parametrize("ranks", [1, 1_000_000])
def test_output_and_status(ranks: int) -> None:
    found = findings(look(), ranks)
    assert found[0].level == "problem" or ranks == 1
    printed = flat(f"check --ranks {ranks}", int(found[0].level == "problem"))
    assert f"for {ranks} rank" in printed
    assert not [one for one in found if f"{one.level} {one.topic} " not in printed or one.change not in printed]
