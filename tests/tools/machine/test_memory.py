"""Findings about memory, each both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from unisono.base.cgroups import Allowance
from unisono.tools.machine import Files, time_copies
from unisono.tools.machine.machine_memory import (
    check_address_space,
    check_files,
    check_huge_pages,
    check_memory,
    check_shm,
)
from unisono.tools.machine.pages import share_saved

Tree = Callable[[Mapping[str, str]], Files]

GIB, MIB = 1 << 30, 1 << 20
SHMEM = "sys/kernel/mm/transparent_hugepage/shmem_enabled"


@pytest.mark.parametrize(("free", "level"), [(8 * GIB, "ok"), (GIB, "advice"), (100 * MIB, "problem")])
def test_free_memory_of_the_machine(tree: Tree, free: int, level: str) -> None:
    files = tree({"proc/meminfo": f"MemTotal:       16777216 kB\nMemAvailable:   {free >> 10} kB\n"})
    found = check_memory(files, Allowance(None, None, None), ranks=4)
    assert found.level == level
    assert "of 16 GiB free" in found.says


def test_a_control_group_may_have_less(tree: Tree) -> None:
    files = tree({"proc/meminfo": f"MemTotal: {32 * MIB} kB\nMemAvailable: {16 * MIB} kB\n"})
    found = check_memory(files, Allowance(None, GIB, 64 * MIB), ranks=2)
    assert (found.level, found.says) == ("problem", "64 MiB free of the 1 GiB of the control group")
    assert "--memory" in found.change
    assert check_memory(files, Allowance(None, 64 * GIB, 60 * GIB), ranks=2).says == "16 GiB of 32 GiB free"


def test_heaps_must_fit_into_the_address_space() -> None:
    assert check_address_space(None, 8 * GIB, 4).level == "ok"
    assert check_address_space(40 * GIB, 8 * GIB, 4).level == "ok"
    found = check_address_space(16 * GIB, 8 * GIB, 4)
    assert found.level == "problem"
    assert "4 × 8 GiB" in found.reason
    heap = int(found.change.rpartition("=")[2])
    assert check_address_space(16 * GIB, heap, 4).level == "ok", "what it advises helps"


@pytest.mark.parametrize(("limit", "level"), [(1024, "ok"), (512, "advice"), (90, "problem")])
def test_open_files(limit: int, level: str) -> None:
    assert check_files(limit, ranks=8).level == level


def test_room_for_data_loaders() -> None:
    assert check_shm(8 * GIB).level == "ok"
    assert check_shm(64 * MIB).level == "advice"
    assert check_shm(None).says == "there is none"


@pytest.mark.parametrize(
    ("chosen", "gain", "level"),
    [
        ("always within_size advise [never] deny force", 0.12, "advice"),
        ("always within_size advise [never] deny force", 0.01, "ok"),
        ("always within_size [advise] never deny force", 0.12, "advice"),
        ("always within_size advise [never] deny force", None, "ok"),
        ("always [within_size] advise never deny force", 0.12, "ok"),
        ("[always] within_size advise never deny force", 0.12, "ok"),
    ],
)
def test_huge_pages_are_advised_where_copies_gain(tree: Tree, chosen: str, gain: float | None, level: str) -> None:
    found = check_huge_pages(tree({SHMEM: f"{chosen}\n"}), gain)
    assert found.level == level
    if level == "advice":
        assert "12% less time" in found.gain
        assert found.change.endswith(f"> /{SHMEM}")


def test_a_gain_is_one_in_most_turns() -> None:
    assert share_saved([(4.0, 3.0)] * 7 + [(4.0, 9.0)]) == 0.25, "another program ran"
    assert share_saved([(4.0, 3.0)] * 4 + [(4.0, 9.0)] * 4) == 0
    assert share_saved([(9.0, 3.0)] * 2 + [(4.0, 4.0)] * 6) == 0


def test_copies_are_timed() -> None:
    found = time_copies()
    assert found.seconds > 0
    assert found.gain is None or 0 <= found.gain < 1
