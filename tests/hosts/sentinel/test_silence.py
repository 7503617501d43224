"""Hosts that are silent: which are lost, what the smaller side of a cut network learns, what a broken link does."""

import pytest

from tests.support.fake_network import WORLD, FakeNetwork, pairs
from unisono.base.records import DepartureKind
from unisono.hosts.sentinel.state_machine import Said, SentinelState, Tick
from unisono.hosts.sentinel.wire import Datagram, Heartbeat, Query

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("sides", "cut_off"),
    [([(0, 1), (2,)], {2}), ([(1, 2), (0,)], {0}), ([(0, 1), (2, 3)], {2, 3}), ([(0, 3, 4), (1, 2)], {1, 2}),
     ([(0,), (1,)], {1}), ([(1, 2, 3, 4, 5), (0,), (6,)], {0, 6}), ([(0,), (1,), (2,)], {0, 1, 2}),
     ([(0, *range(3, 36)), (1, 2)], {1, 2})],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(3))
def test_smaller_side_of_a_cut_is_cut_off(sides: list[tuple[int, ...]], cut_off: set[int], seed: int) -> None:
    net = FakeNetwork(pairs(sum(map(len, sides))), seed, loss=0.02)
    net.run(3.0 + 0.07 * seed)
    net.cut(*sides)
    net.run(2.4)
    for side in sides:
        others = {host for other in sides if other != side for host in other}
        for host in side:
            assert net.lost(host) == others
            assert {*net.memories[host].gone} == {rank for other in others for rank in net.hosts[other]}
    assert net.cut_off() == cut_off
    net.reaches = lambda _a, _b: True  # when the network is whole again, nothing changes
    net.run(3.0)
    assert net.cut_off() >= cut_off
    stays = set(max(sides, key=len))
    assert not net.cut_off() & stays or len(sides) > 2 or len(sides[0]) == len(sides[1])


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("silent_s", [0.5, 1.5, 6.0])
@pytest.mark.parametrize("hosts", [2, 5, 40])
def test_host_heard_again_in_time_is_not_lost(hosts: int, silent_s: float, seed: int) -> None:
    """The others have found it to be silent for too long, and it them, but no rank has been told."""
    net = FakeNetwork([(k,) for k in range(hosts)], seed, silent_s=silent_s)
    net.run(3.0 + silent_s + 0.06 * seed)
    net.cut({1}, {*range(hosts)} - {1})
    net.run(silent_s - 0.05)
    net.reaches = lambda _a, _b: True
    net.run(silent_s + 2.0)
    assert not any(map(net.lost, range(hosts)))
    assert not net.cut_off()
    net.cut({1}, {*range(hosts)} - {1})
    net.run(silent_s + 0.9)
    assert all(net.lost(host) == {1} for host in range(hosts) if host != 1)


def test_lost_hosts_ignore_each_other() -> None:
    net = FakeNetwork(pairs(3), registered=True)
    net.run(3.0)
    net.cut((0, 1), (2,))
    net.run(3.0)
    net.reaches = lambda _a, _b: True
    before = net.sent
    net.step(0, Datagram(2, 12345, Query(WORLD, 1)))
    net.run(1.0)
    assert net.sent - before <= 2 * 5 + 2  # beats of the two that are left, and one answer each
    net.step(0, Said(0, "ask", [WORLD, 1]))
    net.until(lambda: net.heard(0, "fresh") == [["fresh", 1]], most_s=0.1)


def test_cut_is_known_before_ranks_are_gone() -> None:
    """Who sees that a rank is gone finds out whether it is itself cut off."""
    net = FakeNetwork(pairs(4), seed=5)
    net.run(3.0)
    net.cut((0, 1), (2, 3))
    for host in (2, 3):
        net.until(lambda host=host: bool(net.memories[host].gone))
        assert net.cut_off() >= {host}
        assert net.lost(host) == {0, 1}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("hosts", [3, 4, 6])
@pytest.mark.parametrize("both_ways", [True, False])
def test_broken_link_cuts_off_one_host(hosts: int, seed: int, both_ways: bool) -> None:
    net = FakeNetwork(pairs(hosts), seed, slow_s=0.02)
    net.run(3.0 + 0.05 * seed)
    net.reaches = lambda a, b: (a, b) != (0, 2) and (not both_ways or (a, b) != (2, 0))
    net.run(6.0)
    (out,) = net.cut_off()
    assert out == 2 or not both_ways
    assert all(net.lost(host) == {out} for host in range(hosts) if host != out)
    # Nobody else's ranks are there any more for that host, though it hears most of them.
    assert net.memories[out].gone.keys() == {*range(2 * hosts)} - {out, hosts + out}
    assert all(how.how is DepartureKind.DIED for how in net.memories[out].gone.values())


@pytest.mark.parametrize(("at", "rank"), [(0, 2), (2, 0)])
def test_failing_messages_cut_off_the_higher_host(at: int, rank: int) -> None:
    """Though the sentinels hear each other."""
    net = FakeNetwork(pairs(3))
    net.run(3.0)
    net.step(at, Said(at, "lost", [rank]))
    net.run(1.0)
    assert net.cut_off() == {2}
    for host in (0, 1):
        assert net.memories[host].gone.keys() == {2, 5}
        assert (
            net.memories[host].gone[5].words == "is on host h2 (ranks 2, 5), which exchanges no messages with host h0"
        )
    assert net.heard(2, "cut")[0][1] == "this host exchanges no messages with host h0, and the others go on without it"
    net.step(at, Said(at, "lost", [rank]))  # the other rank says so, too
    net.run(1.0)
    assert net.cut_off() == {2}


def test_losing_hosts_one_by_one_is_no_cut() -> None:
    net = FakeNetwork(pairs(4))
    net.run(3.0)
    for host in (1, 3, 2):
        net.stopped.add(host)
        net.run(9.0)
    assert net.lost(0) == {1, 2, 3}
    assert not net.heard(0, "cut")


def test_a_machine_that_was_stopped_blames_nobody() -> None:
    net = FakeNetwork(pairs(3))
    net.run(3.0)
    machine = SentinelState(pairs(3), 0, "abc", net.memories[0], net.now, 1.5)
    for host in (1, 2):
        machine.step(Datagram(host, 0, Heartbeat()), net.now)
    machine.step(Tick(), net.now + 60.0)
    assert not machine.told
    for k in range(10):
        machine.step(Datagram(1, 0, Heartbeat()), net.now + 60.0 + 0.25 * k)
        machine.step(Tick(), net.now + 60.01 + 0.25 * k)
    gone = [value[1] for _, value in machine.told if value[0] == "gone"]
    assert {*pairs(3)[2]} == {*gone}
