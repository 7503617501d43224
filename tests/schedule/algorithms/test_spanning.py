"""Tables over hosts: proved, right on data, and between hosts only where they must be."""

import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.schedule_oracles import is_right
from unisono.base.errors import AlgorithmError, ArgumentError
from unisono.schedule import DST, ROOTED, ROUND, SRC, Hosts, Schedule, prove
from unisono.schedule.algorithms.over_hosts import CORES, expected_rows, spanning

MAPS = ["2x1", "2x2", "2x2:round_robin", "4x1", "3+1", "1+3", "4+2+3", "2+3+4:round_robin", "3x3", "1x4", "1"]
NAMES = [(collective, core) for collective, cores in CORES.items() for core in cores]


def forms(collective: str, core: str, hosts: Hosts) -> list[Schedule]:
    """The tables with all roots and all numbers of rails. Odd roots cut vectors into other segments than usual."""
    made = []
    for root, rails in product(range(hosts.ranks if collective in ROOTED else 1), range(1, hosts.rails + 1)):
        segments = 5 if root % 2 else None
        made.append(spanning(collective, hosts, root, rails=rails, core=core, segments=segments))
        assert (made[-1].collective, made[-1].hosts, made[-1].root) == (collective, hosts, root)
    return made


def check(table: Schedule) -> None:
    assert prove(table).same_bits is (True if table.collective == "all_reduce" else None)


@pytest.mark.parametrize(("collective", "core"), NAMES)
@pytest.mark.parametrize("text", MAPS)
def test_every_form_is_proved(text: str, collective: str, core: str) -> None:
    for table in forms(collective, core, Hosts.parse(text)):
        check(table)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.sampled_from(NAMES), st.data())
def test_any_map_will_do(names: list[int], form: tuple[str, str], data: st.DataObject) -> None:
    hosts, (collective, core) = Hosts.of(names), form
    root = data.draw(st.integers(0, hosts.ranks - 1)) if collective in ROOTED else 0
    table = spanning(collective, hosts, root, rails=data.draw(st.integers(1, hosts.rails)), core=core)
    check(table)
    assert is_right(table, 11)


@pytest.mark.parametrize(("collective", "core"), NAMES)
@pytest.mark.parametrize("text", ["2x2:round_robin", "4+2+3", "3+1"])
def test_between_hosts_only_rails_send(text: str, collective: str, core: str) -> None:
    """Rounds are inside hosts, then between them, then inside; ranks of different hosts are on one rail."""
    hosts = Hosts.parse(text)
    for table in forms(collective, core, hosts):
        rows, host = table.rows, np.array(hosts.places)
        far = host[rows[:, SRC]] != host[rows[:, DST]]
        first, last = rows[far, ROUND].min(), rows[far, ROUND].max()
        assert not ((rows[~far, ROUND] >= first) & (rows[~far, ROUND] <= last)).any()
        for rank in range(hosts.ranks):
            ends = rows[far][:, [SRC, DST]]
            peers = set(ends[(ends == rank).any(axis=1)].ravel().tolist()) - {rank}
            assert len(peers) == len({hosts.host_of(peer) for peer in peers}), "one rank of each other host"


def test_one_rail_needs_no_slices() -> None:
    """The leader of the root's host is the root itself, so that nothing moves there before it leaves."""
    rows = spanning("broadcast", Hosts.parse("3x3"), 4, rails=1).rows
    assert set(rows[rows[:, ROUND] == 0, SRC]) == {4}
    assert set(rows[rows[:, ROUND] < rows[-1, ROUND], DST]) == {0, 6}


REFUSED = [
    ("all_to_all", {}, "'all_to_all' has no table over hosts. Use one of all_reduce, broadcast"),
    ("all_reduce", {"core": "swing"}, "'swing' does not run between hosts. Use one of circulant"),
    ("all_reduce", {"rails": 2}, "got 2 rails, expected 1 to 1"),
    ("all_reduce", {"rails": 0}, "got 0 rails, expected 1 to 1"),
    ("broadcast", {"segments": 0}, "got 0 segments, expected at least 1"),
    ("reduce", {"root": 4}, "got root 4, expected 0 to 3"),
]


@pytest.mark.parametrize(("collective", "options", "said"), REFUSED)
def test_unknown_spanning_arguments(collective: str, options: dict, said: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(said)):
        spanning(collective, Hosts.parse("3+1"), **options)


def test_thousands_of_hosts_are_proved() -> None:
    table = spanning("all_reduce", Hosts.parse("4096x2"))
    proof = prove(table, chunks=(5, 4099))
    assert (proof.ranks, proof.method, proof.followed) == (8192, "fingerprints", "some")
    short = table.replace(rows=table.rows[:-1])
    with pytest.raises(AlgorithmError, match=r"rank 819[01] ends with"):
        prove(short, chunks=(5, 4099, 8191))


def test_sizes_are_expected() -> None:
    for text in ("64x4", "16x8"):
        hosts = Hosts.parse(text)
        for collective, core in NAMES:
            rails = hosts.rails if collective != "all_reduce" or core != "two_shot" else 1
            rows = len(spanning(collective, hosts, rails=rails, core=core).rows)
            assert rows / 3 < expected_rows(collective, hosts, rails, core), (collective, core)
