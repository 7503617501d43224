"""`unisono explain` and `draw` with --hosts: what goes between hosts, how long it takes, and frames around hosts."""

import re

import pytest

from tests.tools.cli.test_explain import say
from unisono.base.config import Config
from unisono.base.link import Link
from unisono.schedule import Hosts
from unisono.schedule.algorithms.over_hosts import CORES
from unisono.schedule.choose.over_hosts import choose_spanning
from unisono.schedule.draw import text


def test_explain_compares_traffic_with_the_bound() -> None:
    words = "explain all_reduce --hosts 4x8 --bytes 64MiB --link 1Gbit,100us --no-rounds"
    printed = say(*words.split())
    chosen = choose_spanning("all_reduce", 64 << 20, Hosts.parse("4x8"), Config(link=Link.parse("1Gbit,100us")))
    assert " ".join(printed.split()).startswith(
        f"all_reduce.spanning circulant ×8 · 32 ranks on 4 hosts (4x8) · 64 MiB, because {chosen.why}"
    )
    assert re.search(r"rounds +2 +4 +2 ", printed)
    assert re.search(r"leaves each host +- +6/4 m = 96 MiB +6/4 m = 96 MiB", printed)
    assert re.search(r"enters each host +- +6/4 m = 96 MiB +6/4 m = 96 MiB", printed)
    assert re.search(r"predicted +26\.8 ms +810 ms", printed)
    assert re.search(r"across +8 × all_reduce\.circulant of 4 hosts", printed)
    assert re.search(r"proved +in .*s: every rank ends with what it must have", printed)
    assert "the same on every rank" in printed


@pytest.mark.parametrize("collective", CORES)
@pytest.mark.parametrize("hosts", ["2x2:round_robin", "3+1"])
def test_every_collective_is_explained_and_drawn(collective: str, hosts: str) -> None:
    printed = say("explain", collective, "--hosts", hosts, "--bytes", "4000")
    chosen = choose_spanning(collective, 4000, Hosts.parse(hosts))
    assert " ".join(printed.split()).startswith(f"{chosen.name} · 4 ranks on 2 hosts")
    grid = text(chosen.make(collective, Hosts.parse(hosts), 0), width=80, rounds=16, lines=20)
    assert grid in printed
    assert "leaves" in printed or collective == "barrier"


def test_user_may_name_what_hosts_do() -> None:
    words = "explain all_reduce.ring --hosts 4x2 --bytes 1GB --no-rounds"
    printed = say(*words.split())
    assert "because you named it" in " ".join(printed.split())
    assert re.search(r"across +2 × all_reduce\.ring of 4 hosts", printed)
    assert "6/4 m = 1.5 GB" in printed


def test_flat_algorithms_are_counted_over_hosts() -> None:
    printed = say("explain", "all_reduce.bruck", "--hosts", "2x2", "--no-rounds")
    assert printed.startswith("all_reduce.bruck · 4 ranks on 2 hosts")
    assert re.search(r"leaves each host +- +5/2 m = 40 MiB +1 m = 16 MiB", printed)
    assert re.search(r"rounds +2 +4 +1", printed)
    assert "priced only" not in printed


def test_all_to_all_is_one_table_of_all_ranks() -> None:
    printed = say("explain", "all_to_all", "--hosts", "2x2", "--link", "1Gbit,100us", "--no-rounds")
    assert printed.startswith("all_to_all.direct · 4 ranks on 2 hosts (2x2) · 16 MiB, because over 1 Gbit/s")
    assert re.search(r"leaves each host +- +1 m = 16 MiB +1 m = 16 MiB", printed)
    assert "priced only" not in printed
    printed = " ".join(say("explain", "all_to_all", "--hosts", "1024x8").split())
    assert "each contribution exactly once; by random fingerprints of one chunk, which stands for all" in printed
    assert "leaves each host - 7.99 m = 128 MiB 7.99 m = 128 MiB" in printed


def test_one_host_is_explained_as_ever() -> None:
    timeless = [re.sub(r"in [\d.]+ .?s:", "", say("explain", "all_reduce", *more)) for more in ([], ["--hosts", "4"])]
    assert timeless[0].split() == timeless[1].split()


def test_too_large_tables_are_refused() -> None:
    printed = say("explain", "reduce_scatter", "--hosts", "1024x8", fails=2)
    assert "would have about 6.7e+07 rows. Give fewer hosts" in printed


def test_draw_marks_rows_that_cross_hosts() -> None:
    printed = say("draw", "all_reduce.bruck", "--hosts", "2x2")
    assert re.search(r"0 ═\+→ 2", printed)
    assert "host 0         │  host 1" in printed
