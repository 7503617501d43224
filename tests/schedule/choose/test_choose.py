"""The choice on one host, where each rank has a processor and where several share one.

How a call goes between hosts: few bytes by few rounds, many bytes by all rails, and always the cheaper of both.
"""

from __future__ import annotations

import os

import pytest

import unisono
from tests.support.each import each
from unisono.base.config import Config
from unisono.base.errors import ArgumentError
from unisono.base.link import Link
from unisono.schedule import Hosts
from unisono.schedule.algorithms.over_hosts import CORES, spanning
from unisono.schedule.choose import choose, is_oversubscribed, one_shot_limit
from unisono.schedule.choose.over_hosts import choose_spanning, messages_at_once, time_between, time_inside
from unisono.schedule.contract import ROOTED


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_oversubscribed_ranks_wait_longer_so_one_step_serves_longer_vectors(ranks: int) -> None:
    config = Config()
    alone, shared = (one_shot_limit(ranks, config, oversubscribed=oversubscribed) for oversubscribed in (False, True))
    assert alone < shared
    for limit, oversubscribed in ((alone, False), (shared, True)):
        assert choose("all_reduce", limit, ranks, config, oversubscribed=oversubscribed).algorithm.name == "one_shot"
        longer = choose("all_reduce", limit + 1, ranks, config, oversubscribed=oversubscribed)
        assert longer.algorithm.name == "two_shot"
        assert ("more than processors" in longer.why) is oversubscribed


def test_more_ranks_than_the_machine_has_processors_are_oversubscribed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert [is_oversubscribed(ranks) for ranks in (1, 4, 5, 64)] == [False, False, True, True]


def test_calls_follow_it(capfd: pytest.CaptureFixture[str]) -> None:
    ranks = (os.cpu_count() or 1) + 1
    if ranks > 9:
        pytest.skip("oversubscribed ranks would be more than nine here")
    nbytes = one_shot_limit(ranks, Config(), oversubscribed=True)

    def work() -> None:
        import torch

        unisono.all_reduce(torch.ones(nbytes // 4))

    for product, name in ((Config().crowd_one_shot_bytes, "one_shot"), (0, "two_shot")):
        with unisono.world(ranks, config=Config(debug=1, crowd_one_shot_bytes=product), timeout_s=90) as world:
            world.run(work)
        assert f"all_reduce.{name}" in capfd.readouterr().err


MAPS = ["2x1", "2x2", "4x2", "3x8", "16x8", "3+1", "4+2+3"]
SIZES = [0, 8, 4096, 1 << 18, 1 << 20, 1 << 24, 1 << 28]
LINKS = ["10Gbit,100us", "1Gbit,100us", "100Gbit,5us"]


def choice(collective: str, nbytes: int, hosts: str, link: str = "10Gbit,100us"):
    return choose_spanning(collective, nbytes, Hosts.parse(hosts), Config(link=Link.parse(link)))


def test_few_bytes_take_one_rail_and_few_rounds() -> None:
    assert choice("all_reduce", 8, "4x8")[:2] == (1, "recursive_doubling")
    assert choice("broadcast", 8, "4x8")[:2] == (1, "binomial")
    assert choice("all_gather", 8, "4x8")[:2] == (1, "circulant")


def test_many_bytes_take_all_rails_and_few_bytes_on_the_link() -> None:
    assert choice("all_reduce", 64 << 20, "4x8")[:2] == (8, "circulant")
    assert choice("all_reduce", 64 << 20, "3+1")[:2] == (1, "recursive_doubling")  # of two hosts each moves as much
    assert choice("reduce_scatter", 64 << 20, "4x8")[:2] == (8, "circulant")


def test_the_slower_the_link_the_fewer_bytes_on_it() -> None:
    cores = [choice("all_reduce", 1 << 20, "4x2", link).core for link in ("100Gbit,1ms", "1Gbit,10us")]
    assert cores == ["recursive_doubling", "circulant"]


@each("hosts", ["3x1", "4x1"])
def test_between_few_hosts_long_messages_take_the_fewest_rounds_and_short_ones_the_fewest_messages(hosts: str) -> None:
    """All of these put as few bytes on the link as there can be; each round of long messages has to wake the rank."""
    assert choice("all_reduce", 16 << 20, hosts).core == "two_shot"
    assert choice("all_gather", 16 << 20, hosts).core == choice("reduce_scatter", 16 << 20, hosts).core == "direct"
    assert choice("all_reduce", 8, hosts).core == "recursive_doubling"


def test_between_many_hosts_no_rank_sends_to_all_at_once() -> None:
    for nbytes in SIZES[1:]:
        assert choice("all_reduce", nbytes, "16x1").core != "two_shot"
        assert choice("all_gather", nbytes, "16x1").core == choice("reduce_scatter", nbytes, "16x8").core == "circulant"


@each("collective", CORES)
@each("hosts", ["4x1", "4x2"])
def test_a_rank_sends_as_many_messages_at_once_as_its_table_has_in_a_round(collective: str, hosts: str) -> None:
    if collective in ROOTED:
        return  # their roots send more than other ranks
    for core in CORES[collective]:
        if core == "pairwise":
            continue  # some of its rounds are inside a host for some ranks only
        levels = spanning(collective, Hosts.parse(hosts), core=core).levels()
        assert messages_at_once(collective, core, Hosts.parse(hosts)) * levels.between == levels.messages


def test_a_slow_link_makes_more_segments_of_more_bytes() -> None:
    cuts = [choice("broadcast", 1 << power, "4x2", "1Gbit,100us").segments or 1 for power in range(10, 28)]
    assert cuts == sorted(cuts)
    assert cuts[0] == 1 < cuts[-1]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("hosts", MAPS)
@each("collective", CORES)
def test_there_is_a_table_for_every_choice_and_its_time_is_that_of_the_counts(
    collective: str, hosts: str, link: str
) -> None:
    for nbytes in SIZES:
        found = choice(collective, nbytes, hosts, link)
        call = spanning(collective, Hosts.parse(hosts), rails=found.rails, core=found.core, segments=found.segments)
        if len({len(host) for host in call.hosts.members}) > 1:
            continue  # the busiest host depends on where the root is
        levels, rails = call.levels(), found.rails or 1
        most = 0 if collective == "barrier" else levels.most * nbytes
        at_once = messages_at_once(collective, found.core, call.hosts)
        priced = time_between(levels.between, most, rails, Link.parse(link), at_once)
        assert found.between_s == pytest.approx(priced)
        assert found.inside_s == time_inside(collective, nbytes, call.hosts, rails)


def test_the_reason_names_the_link_and_what_else_there_is() -> None:
    why = choice("all_reduce", 64 << 20, "4x8", "1Gbit,100us").why
    assert why.startswith("over 1 Gbit/s, 100 µs (as set) circulant on 8 rails takes about 8")
    assert "ms, two_shot on 8 rails 8" in why
    assert "(the default)" in choice("all_reduce", 8, "2x2").why


def test_what_goes_in_segments_goes_in_pieces_only_where_ranks_share_hosts() -> None:
    assert choice("broadcast", 256 << 20, "2x1").pieces == 4, "one segment"
    alone, together = (choice("broadcast", 256 << 20, hosts) for hosts in ("4x1", "4x2"))
    assert (alone.segments or 1) > 1
    assert (alone.pieces, together.pieces) == (1, 4)


def test_an_unknown_collective() -> None:
    with pytest.raises(ArgumentError, match="'scan' has no table over hosts; there are: all_reduce"):
        choice("scan", 8, "2x2")


def test_one_host_needs_no_link() -> None:
    assert choice("all_reduce", 8, "4").between_s == 0
