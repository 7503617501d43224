"""Findings about what the system allows, each both ways."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping

import pytest

from unisono.tools.machine import Files
from unisono.tools.machine.rights import check_cross_memory, check_memfd, check_watching, why_no_memfd, why_no_watching

Tree = Callable[[Mapping[str, str]], Files]

YAMA = "proc/sys/kernel/yama/ptrace_scope"
STATUS = "proc/self/status"
CAPABLE, NOT_CAPABLE = "CapEff:\t0000000000080000\n", "CapEff:\t0000000000000400\n"


@pytest.mark.parametrize(
    ("scope", "status", "reaches", "level"),
    [
        ("0", NOT_CAPABLE, True, "ok"),
        ("1", NOT_CAPABLE, False, "advice"),
        ("1", CAPABLE, True, "ok"),
        ("0", NOT_CAPABLE, False, "advice"),
        # What is not tried is read.
        ("", NOT_CAPABLE, None, "ok"),
        ("1", NOT_CAPABLE, None, "advice"),
        ("1", CAPABLE, None, "ok"),
        ("3", CAPABLE, None, "advice"),
    ],
)
def test_may_ranks_read_each_other(tree: Tree, scope: str, status: str, reaches: bool | None, level: str) -> None:
    files = tree({STATUS: status, **({YAMA: f"{scope}\n"} if scope else {})})
    found = check_cross_memory(files, True, reaches, "it is faster")
    assert found.level == level
    if level == "ok":
        assert found.says.endswith(": it is faster")
    else:
        assert "copied twice" in found.reason
        assert ("ptrace_scope=0" in found.change) == (scope not in ("", "0"))


@pytest.mark.parametrize(("seccomp", "change"), [("2", "--cap-add SYS_PTRACE"), ("0", "as one user")])
def test_why_they_may_not(tree: Tree, seccomp: str, change: str) -> None:
    files = tree({STATUS: f"Seccomp:\t{seccomp}\n{NOT_CAPABLE}"})
    assert change in check_cross_memory(files, True, False, "").change
    assert check_cross_memory(files, False, False, "").level == "ok"


def test_memory_without_a_name(tree: Tree) -> None:
    assert check_memfd(tree({}), "").level == "ok"
    found = check_memfd(tree({}), "EPERM")
    assert (found.level, found.says) == ("problem", "memfd_create is refused: EPERM")
    assert "filter" in found.change
    found = check_memfd(tree({"proc/sys/vm/memfd_noexec": "2\n"}), "EACCES")
    assert found.change == "as root: sysctl vm.memfd_noexec=1"


def test_watching_processes() -> None:
    assert check_watching("").level == "ok"
    assert check_watching("ENOSYS").level == "problem"


def test_this_system_allows_both_and_a_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_no_memfd() == why_no_watching() == ""

    def refused(*_: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    for name, why in (("memfd_create", why_no_memfd), ("pidfd_open", why_no_watching)):
        monkeypatch.setattr(os, name, refused)
        assert why() == "EPERM, Operation not permitted"
        monkeypatch.delattr(os, name)
        assert why() == "this system has none"
