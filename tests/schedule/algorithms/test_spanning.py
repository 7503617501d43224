"""Tables over hosts: proved as one table, right on data, whole or of some chunks."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.support.each import each
from tests.support.schedule_oracles import is_right
from unisono.base.errors import AlgorithmError, ArgumentError
from unisono.schedule import ROOTED, ROUND, Hosts, Schedule, expand, prove
from unisono.schedule.algorithms.over_hosts import CORES, HierarchicalTable, Part, spanning, whole

MAPS = ["2x1", "2x2", "2x2:round_robin", "4x1", "3+1", "1+3", "4+2+3", "2+3+4:round_robin", "3x3", "1x4", "1"]
NAMES = [(collective, core) for collective, cores in CORES.items() for core in cores]


def forms(collective: str, core: str, hosts: Hosts) -> list[HierarchicalTable]:
    """The calls with all roots and all numbers of rails."""
    roots = range(hosts.ranks) if collective in ROOTED else range(1)
    rails = range(1, hosts.rails + 1)
    return [spanning(collective, hosts, root, rails=many, core=core) for root, many in product(roots, rails)]


def check(call: HierarchicalTable) -> None:
    schedule, proof = call.schedule(), prove(call.schedule())
    assert (schedule.collective, schedule.ranks, schedule.root) == (call.collective, call.hosts.ranks, call.root)
    assert proof.same_bits is (True if call.collective == "all_reduce" else None)


@each("collective, core", NAMES)
@pytest.mark.parametrize("text", MAPS)
def test_every_form_is_proved(text: str, collective: str, core: str) -> None:
    for call in forms(collective, core, Hosts.parse(text)):
        check(call)


def rows_by_chunk(schedule: Schedule, chunk: int) -> list[list[int]]:
    """The rows that move a chunk; their rounds are numbered without gaps."""
    rows = expand(schedule, (chunk,))
    rows[:, ROUND] = np.unique(rows[:, ROUND], return_inverse=True)[1]
    return sorted(rows.tolist())


@each("collective, core", NAMES)
@pytest.mark.parametrize("few", [64, 1], ids=["as the whole", "of one member"])
def test_rows_of_one_chunk(few: int, collective: str, core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of some chunks are those that the whole table has for them, also if one member stands for all."""
    monkeypatch.setattr(whole, "_FEW", few)
    whole._table.cache_clear()
    for text in MAPS:
        for call in forms(collective, core, Hosts.parse(text)):
            for chunk in range(call.chunks):
                assert rows_by_chunk(call.schedule((chunk,)), chunk) == rows_by_chunk(call.schedule(), chunk)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.sampled_from(NAMES), st.data())
def test_any_map_will_do(names: list[int], form: tuple[str, str], data: st.DataObject) -> None:
    hosts, (collective, core) = Hosts.of(names), form
    root = data.draw(st.integers(0, hosts.ranks - 1)) if collective in ROOTED else 0
    rails = data.draw(st.integers(1, hosts.rails))
    call = spanning(collective, hosts, root, rails=rails, core=core)
    check(call)
    assert is_right(call.schedule(), 11)


@pytest.mark.parametrize("collective", CORES)
@pytest.mark.parametrize("text", ["2x2:round_robin", "4+2+3", "3+1"])
def test_parts_span_a_host_or_all_hosts(text: str, collective: str) -> None:
    hosts = Hosts.parse(text)
    for call in forms(collective, CORES[collective][0], hosts):
        assert all(part.members in hosts.members for part in (*call.before, *call.after))
        for part in call.across:
            assert {hosts.host_of(rank) for rank in part.members} == set(range(len(hosts.members)))
            assert len(part.members) == len(hosts.members)
        for part in (*call.before, *call.across, *call.after):
            assert len(part.members) > 1
            assert len(part.blocks) in (1, len(part.members))
            assert 0 <= part.root < len(part.members)


def test_one_rail_needs_no_slices() -> None:
    """The leader of the root's host is the root itself, so that nothing moves there before it leaves."""
    call = spanning("broadcast", Hosts.parse("3x3"), 4, rails=1)
    assert not call.before
    assert call.across[0].members == (0, 4, 6)
    assert call.after[1] == Part("broadcast", (3, 4, 5), (tuple(range(8)),), 1)


def test_vector_is_cut_into_any_segments() -> None:
    for collective in ("broadcast", "reduce"):
        call = spanning(collective, Hosts.parse("3x2"), 1, rails=2, segments=5)
        assert call.chunks == 10
        check(call)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("all_to_all", {}), "'all_to_all' has no table over hosts; there are: all_reduce, broadcast"),
        (("all_reduce", {"core": "swing"}), "'swing' does not run between hosts; these do: circulant"),
        (("all_reduce", {"rails": 2}), "2 rails are not between 1 and 1"),
        (("all_reduce", {"rails": 0}), "0 rails are not between 1 and 1"),
        (("broadcast", {"segments": 0}), "0 segments: give at least 1"),
        (("reduce", {"root": 4}), "root 4 is not one of the ranks 0 to 3"),
    ],
)
def test_unknown_spanning_arguments(words: tuple[str, dict], said: str) -> None:
    collective, options = words
    with pytest.raises(ArgumentError, match=re.escape(said)):
        spanning(collective, Hosts.parse("3+1"), **options)


def broken(call: HierarchicalTable, draw: st.DataObject) -> HierarchicalTable:
    """The call with one of its parts left out, doubled, or changed."""
    phase = draw.draw(st.sampled_from([name for name in ("before", "across", "after") if getattr(call, name)]))
    parts = list(getattr(call, phase))
    k = draw.draw(st.integers(0, len(parts) - 1))
    part = parts.pop(k)
    turned = (*part.blocks[1:], part.blocks[0])
    other = (part.root + 1) % len(part.members)
    changes = [
        [],
        [part, part],
        [replace(part, blocks=turned)],
        [replace(part, root=other)],
        [replace(part, members=part.members[::-1])],
    ]
    return replace(call, **{phase: tuple(parts[:k] + draw.draw(st.sampled_from(changes)) + parts[k:])})


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(MAPS[:-1]), st.sampled_from(sorted(set(CORES) - {"barrier"})), st.data())
def test_chunks_one_by_one_prove_nothing_wrong(text: str, collective: str, data: st.DataObject) -> None:
    hosts = Hosts.parse(text)
    root = data.draw(st.integers(0, hosts.ranks - 1)) if collective in ROOTED else 0
    call = broken(spanning(collective, hosts, root, rails=data.draw(st.integers(1, hosts.rails))), data)
    chunks = range(call.chunks)
    try:
        prove(call.schedule(chunks), chunks=chunks)
    except (AlgorithmError, ArgumentError):  # it is wrong, or its chunks cannot be followed one by one
        return
    prove(call.schedule())


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_thousands_of_hosts_are_proved(collective: str) -> None:
    call = spanning(collective, Hosts.parse("4096x2"))
    proof = prove(call.schedule((5, 4099)), chunks=(5, 4099))
    assert (proof.ranks, proof.method, proof.followed) == (8192, "fingerprints", "some")
    short = replace(call, after=call.after[:-1])
    with pytest.raises(AlgorithmError, match=r"rank 819[01] ends without (rank|the parts)"):
        prove(short.schedule((5, 4099, 8191)), chunks=(5, 4099, 8191))
