"""The choice on one host, where each rank has a processor and where several share one, and how many lanes it has."""

import numpy as np
import pytest

import unisono
from unisono.base.config import Config
from unisono.base.link import Link
from unisono.base.linux import processors
from unisono.schedule import DST, ROUND, SRC, Hosts, levels
from unisono.schedule.algorithms.over_hosts import CORES, spanning
from unisono.schedule.choose import choose, one_shot_limit, over_hosts
from unisono.schedule.choose.lane_limits import Lanes, Processors, choose_lanes
from unisono.schedule.choose.over_hosts import choose_spanning, messages_at_once
from unisono.schedule.contract import ROOTED


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
def test_oversubscription_raises_one_shot_limit(ranks: int) -> None:
    config = Config()
    alone, shared = (one_shot_limit(ranks, config, oversubscribed=oversubscribed) for oversubscribed in (False, True))
    assert alone < shared
    for limit, oversubscribed in ((alone, False), (shared, True)):
        assert choose("all_reduce", limit, ranks, config, oversubscribed=oversubscribed).algorithm.name == "one_shot"
        longer = choose("all_reduce", limit + 1, ranks, config, oversubscribed=oversubscribed)
        assert longer.algorithm.name == "two_shot"
        assert ("more than processors" in longer.why) is oversubscribed


def test_calls_follow_it(capfd: pytest.CaptureFixture[str]) -> None:
    ranks = processors() + 1
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


@pytest.mark.parametrize(
    ("collective", "nbytes", "hosts", "rails", "core"),
    [
        ("all_reduce", 8, "4x8", 1, "recursive_doubling"),  # few bytes: one rail and few rounds
        ("broadcast", 8, "4x8", 1, "binomial"),
        ("all_gather", 8, "4x8", 1, "circulant"),
        ("all_reduce", 64 << 20, "4x8", 8, "circulant"),  # many bytes: all rails, few bytes on the link
        ("reduce_scatter", 64 << 20, "4x8", 8, "circulant"),
        ("all_reduce", 64 << 20, "3+1", 1, "recursive_doubling"),  # of two hosts each moves as much
        ("all_reduce", 16 << 20, "4x1", 1, "two_shot"),  # few hosts, long messages: each round has to wake the rank
        ("all_gather", 16 << 20, "3x1", 1, "direct"),
        ("reduce_scatter", 16 << 20, "4x1", 1, "direct"),
        ("all_reduce", 8, "3x1", 1, "recursive_doubling"),
        ("all_gather", 16 << 20, "16x1", 1, "circulant"),  # many hosts: no rank sends to all at once
        ("reduce_scatter", 16 << 20, "16x8", 8, "circulant"),
    ],
)
def test_choice_between_hosts(collective: str, nbytes: int, hosts: str, rails: int, core: str) -> None:
    assert choice(collective, nbytes, hosts)[:2] == (rails, core)


def test_links_decide() -> None:
    """A slow link carries fewer bytes; the barrier beside a rooted call is priced; one host needs no link."""
    cores = [choice("all_reduce", 1 << 20, "4x2", link).core for link in ("100Gbit,1ms", "1Gbit,10us")]
    assert cores == ["recursive_doubling", "circulant"]
    assert choice("scatter", 8, "8x1").between_s > 3 * 100e-6, "the root sends once; a barrier of 8 has 3 rounds"
    assert choice("all_reduce", 8, "4").between_s == 0


@pytest.mark.parametrize("collective", CORES)
@pytest.mark.parametrize("hosts", ["4x1", "4x2"])
def test_messages_at_once_match_the_table(collective: str, hosts: str) -> None:
    if collective in ROOTED:
        return  # their roots send more than other ranks
    for core in CORES[collective]:
        table, where = spanning(collective, Hosts.parse(hosts), core=core), Hosts.parse(hosts)
        host, rows = np.array(where.places), table.rows
        far = rows[host[rows[:, SRC]] != host[rows[:, DST]]]
        messages = np.bincount(np.unique(far[:, [ROUND, SRC, DST]], axis=0)[:, 1])
        assert messages_at_once(collective, core, where) * levels(table).between == messages.max()


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("hosts", MAPS)
@pytest.mark.parametrize("collective", [*CORES, "all_to_all", "scan", "exscan"])
def test_every_choice_has_a_table_and_its_time(collective: str, hosts: str, link: str) -> None:
    for nbytes in SIZES:
        found = choice(collective, nbytes, hosts, link)
        where, rails = Hosts.parse(hosts), found.rails or 1
        if len({len(host) for host in where.members}) > 1:
            continue  # the busiest host depends on where the root is
        counted = levels(found.make(collective, where, 0))
        most = 0 if collective == "barrier" else counted.most * nbytes
        at_once = messages_at_once(collective, found.core, where)
        rounds = over_hosts.gated_rounds(collective, counted.between, where)
        priced = over_hosts.time_between(rounds, most, rails, Link.parse(link), at_once)
        assert found.between_s == pytest.approx(priced)
        assert found.inside_s == over_hosts.time_inside(collective, nbytes, where, rails)


def test_reason_names_link_and_alternatives() -> None:
    why = choice("all_reduce", 64 << 20, "4x8", "1Gbit,100us").why
    assert why.startswith("over 1 Gbit/s, 100 µs circulant on 8 rails takes about 8")
    assert "ms, two_shot on 8 rails 8" in why


def test_segments_are_pieces_already() -> None:
    assert choice("broadcast", 256 << 20, "2x1").pieces == 4, "one segment"
    for hosts in ("4x1", "4x2"):
        cuts = [choice("broadcast", 1 << power, hosts) for power in range(10, 29)]
        segments = [cut.segments or 1 for cut in cuts]
        assert segments == sorted(segments)
        assert segments[0] == 1 < segments[-1]
        assert cuts[-1].pieces == 1


@pytest.mark.parametrize(
    ("collective", "nbytes", "hosts", "pieces"),
    [
        ("all_reduce", 4 << 20, "2x2", 4),
        ("all_gather", 4 << 20, "2x2", 4),
        ("all_to_all", 4 << 20, "2x2", 4),
        ("all_to_all", 4 << 20, "4x8", 4),
        ("all_to_all", 4 << 20, "16x8", 2),  # a message of the whole has 32 KiB, one of a piece at least 16
        ("all_to_all", 4 << 20, "32x8", 1),
        ("all_to_all", 64 << 20, "16x8", 4),
        ("scatter", 4 << 20, "64x8", 4),
        ("scatter", 4 << 20, "128x8", 2),
        ("all_reduce", 2 << 20, "4x4", 4),
        ("all_reduce", 4 << 20, "1024x8", 2),
        ("all_reduce", 1 << 20, "2x2", 2),  # a piece has 512 KiB at least
    ],
)
def test_pieces_make_no_small_messages(collective: str, nbytes: int, hosts: str, pieces: int) -> None:
    assert choice(collective, nbytes, hosts).pieces == pieces


FREE = Processors(16, 16, 2, 16)


@pytest.mark.parametrize(
    ("lanes", "here", "expected", "because"),
    [
        (8, FREE, 8, "as set"),
        (16, FREE, 8, "16 processors for 2 ranks"),
        (8, Processors(16, 16, 4, 16), 4, "16 processors for 4 ranks"),
        (8, Processors(4, 8, 2, 16), 4, "8 processors"),
        (8, Processors(3, 8, 2, 16), 3, "bound to 3 processors"),
        (8, Processors(16, 16, 2, 1), 8, "as set"),  # PyTorch has fewer threads
        (8, Processors(2, 2, 9, 1), 1, "2 processors"),
        (0, Processors(64, 64, 2, 32), 4, "the most by default"),
        (0, Processors(64, 64, 2, 3), 3, "3 threads of PyTorch"),
        (0, Processors(12, 12, 4, 16), 3, "12 processors for 4 ranks"),
        (0, Processors(3, 3, 2, 3), 1, "3 processors"),
    ],
)  # fmt: skip
def test_lanes_never_exceed_processors(lanes: int, here: Processors, expected: int, because: str) -> None:
    found = choose_lanes(1 << 30, here, Config(lanes=lanes))
    assert found.number == expected
    assert because in found.why


def test_short_calls_have_one_lane() -> None:
    config = Config(lanes=4, lane_bytes=1000)
    assert choose_lanes(1001, FREE, config).number == 4
    why = "1 lane: up to 1000 B, to wake a helper takes longer than it saves"
    assert choose_lanes(1000, FREE, config) == Lanes(1, why)
    assert choose_lanes(1 << 30, FREE, Config(lanes=1)) == Lanes(1)


@pytest.mark.parametrize("lanes", [-1, 1025])
def test_invalid_number_of_lanes_is_refused(lanes: int) -> None:
    with pytest.raises(unisono.ArgumentError, match="UNISONO_LANES"):
        Config(lanes=lanes)
