"""Findings about software, network and speed, each both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from unisono.base.tuning import HostCosts, Moment, Rates, TuningResults
from unisono.tools.machine import Files, Finding, Speed, fastest
from unisono.tools.machine.network_address import check_address, check_packets
from unisono.tools.machine.software import (
    check_machine_code,
    check_threads,
    check_tuned,
    check_versions,
    installed,
    wanted,
)
from unisono.tools.machine.speed import check_barrier, crossing_gain

Tree = Callable[[Mapping[str, str]], Files]

THERE = {"torch": "2.13.0+cpu", "numba": "0.61.2", "llvmlite": "0.44.0", "numpy": "2.2.6"}
WISHES = {"unisono": ["torch>=2.11", "numba>=0.61"], "numba": ["llvmlite<0.45,>=0.44.0dev0", "numpy<2.3,>=1.24"]}


def test_versions_that_fit() -> None:
    found = check_versions("3.12.1", THERE, WISHES)
    assert found.level == "ok"
    assert found.says.startswith("python 3.12.1, torch 2.13.0+cpu, numba 0.61.2")


@pytest.mark.parametrize(
    ("name", "version", "says"),
    [
        ("numpy", "2.3", "numpy 2.3, but numba needs numpy<2.3,>=1.24"),
        ("llvmlite", "0.45.1", "llvmlite 0.45.1, but numba needs llvmlite<0.45,>=0.44.0dev0"),
        ("torch", "2.9.1", "torch 2.9.1, but unisono needs torch>=2.11"),
    ],
)
def test_pairs_that_do_not(name: str, version: str, says: str) -> None:
    found = check_versions("3.12.1", THERE | {name: version}, WISHES)
    assert (found.level, found.says) == ("problem", says)
    assert found.change.startswith(f'pip install "{name}')


def test_what_is_missing_is_named() -> None:
    found = check_versions("3.12.1", {name: THERE[name] for name in ("torch", "numpy")}, WISHES)
    assert (found.level, found.says) == ("problem", "numba, llvmlite: not there")


def test_what_is_installed_here_fits() -> None:
    assert set(installed()) == set(THERE)
    assert any(wish.startswith("llvmlite") for wish in wanted()["numba"])
    assert check_versions("3", installed(), wanted()).level == "ok"


def test_where_machine_code_is_kept() -> None:
    assert check_machine_code(Path("/cache"), True).says == "kept in /cache"
    assert check_machine_code(Path("/cache"), False).says == "will be kept in /cache"
    assert check_machine_code(None, True).level == "ok"
    found = check_machine_code(None, False)
    assert found.level == "problem"
    assert "UNISONO_CACHE_DIR" in found.change


def test_threads_of_torch() -> None:
    assert check_threads({}, 4, 4).level == "ok"
    assert check_threads({"OMP_NUM_THREADS": "2"}, 8, 4).level == "ok"
    assert check_threads({"OMP_NUM_THREADS": "1"}, 2, 8).level == "ok", "fewer are not possible"
    found = check_threads({"OMP_NUM_THREADS": "8"}, 8, 4)
    assert found.level == "advice"
    assert found.change == "OMP_NUM_THREADS=2"


def test_tuned_or_not() -> None:
    quiet = Moment("2026-11-20", 0.1, 2)
    costs = HostCosts(2e-6, 5e-7, (Rates(1 << 20, 7e-11, 2e-10, 5e-11),), 0.1, quiet)
    found = TuningResults("2026-11-20", {}, costs, quiet)
    for good in (found, found._replace(costs=None)):
        assert check_tuned(good) == Finding("ok", "tune", "measured on 2026-11-20")
    assert check_tuned(None).change.startswith("unisono tune")
    busy = quiet._replace(busy=1.8)
    assert check_tuned(found._replace(moment=busy._replace(processors=4))).level == "ok", "there was room"
    for bad, says in (
        (found._replace(moment=None), "measured on 2026-11-20 without a note of the load"),
        (found._replace(costs=costs._replace(moment=None)), "measured on 2026-11-20 without a note of the load"),
        (found._replace(moment=busy), "measured on 2026-11-20, while other programs use 1.8 of 2 processors"),
        (
            found._replace(costs=costs._replace(moment=busy._replace(on="2026-11-19"))),
            "measured on 2026-11-19, while other programs use 1.8 of 2 processors",
        ),
        (
            found._replace(costs=costs._replace(residual=0.8)),
            "measured on 2026-11-20: calls took 80% more or less than what they should by the costs found then",
        ),
    ):
        told = check_tuned(bad)
        assert (told.level, told.says) == ("advice", says)
        assert told.change.startswith("unisono tune")


def test_the_address_that_others_would_see() -> None:
    assert check_address("10.1.2.3", "10.1.2.3", "eth0", {}).says == "10.1.2.3 (eth0)"
    found = check_address("10.1.2.3", "10.1.2.3", "eth0", {"MASTER_ADDR": "node0"})
    assert found.says == "10.1.2.3 (eth0) toward MASTER_ADDR=node0"
    assert check_address("", "", "", {}).level == "ok"
    found = check_address("127.0.0.1", "10.1.2.3", "lo", {"MASTER_ADDR": "localhost"})
    assert (found.level, found.says) == ("advice", "MASTER_ADDR=localhost is this host alone")
    assert "MASTER_ADDR=10.1.2.3" in found.change
    assert check_address("127.0.0.1", "", "lo", {"MASTER_ADDR": "localhost"}).level == "ok", "there is nobody else"
    assert check_address("", "10.1.2.3", "", {"MASTER_ADDR": "nowhere"}).level == "advice"


@pytest.mark.parametrize(
    ("mtu", "speed", "level"),
    [("1500", "1000", "ok"), ("1500", "-1", "ok"), ("9000", "25000", "ok"), ("1500", "25000", "advice")],
)
def test_packets_of_fast_networks(tree: Tree, mtu: str, speed: str, level: str) -> None:
    files = tree({"sys/class/net/eth0/mtu": mtu, "sys/class/net/eth0/speed": speed})
    found = check_packets(files, "eth0")
    assert found.level == level
    assert found.says.startswith(f"eth0: {mtu} bytes")
    assert check_packets(files, "").says == "no network"


def test_a_barrier_that_takes_long_is_told() -> None:
    quick, slow = Speed("barrier", 4, "private", 2, 1e-6), Speed("barrier", 4, "private", 4, 1e-3)
    assert check_barrier([], 4) == []
    assert check_barrier([quick, slow], usable=2)[0].level == "ok", "four ranks on two processors do take long"
    found = check_barrier([quick, slow], usable=4)[0]
    assert (found.level, found.says) == ("advice", "1 µs on 2 ranks, 1 ms on 4 ranks")


@pytest.mark.long
def test_what_reading_each_other_brings() -> None:
    direct, staged = Speed("all_reduce", 8, "private", 2, 3.0), Speed("all_reduce", 8, "staged", 2, 4.0)
    assert crossing_gain([direct, staged]) == "long calls on private tensors take 25% less time"
    assert crossing_gain([direct, staged._replace(seconds=2.0)]) == ""
    assert crossing_gain([direct]) == ""
    assert fastest([direct, staged], "all_reduce", 8, "staged", 2) == 4.0
    assert fastest([direct, staged], "all_reduce", 8, "staged", 3) is None
