"""The protocol of sentinels, without processes: lossy networks, cuts, stops, many hosts.

Of silent hosts: which are lost, what the smaller side of a cut network learns, what a broken link does.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.support.fake_network import BAD_NETWORKS, KILLED, START, WORLD, FakeNetwork, pairs
from unisono.base.records import Departure, DepartureKind
from unisono.hosts.sentinel.state_machine import Ended, Said, SentinelState, Tick
from unisono.hosts.sentinel.wire import Ack, Datagram, Fact, FactKind, Heartbeat, MemberPage, News, Pages, Query

pytestmark = pytest.mark.quick


def test_parent_may_report_a_living_rank_as_gone() -> None:
    """It runs another program now. A rank that has returned from its function is still there."""
    net = FakeNetwork(pairs(3))
    net.memories[1].depart(4, DepartureKind.DIED, "runs another program now")
    net.memories[1].depart(1, DepartureKind.RETURNED, "returned from the function")
    net.run(1.0)
    assert all(memory.gone[4].words == "runs another program now" for memory in net.memories)
    assert not any(1 in memory.gone for memory in (net.memories[0], net.memories[2]))


@pytest.mark.parametrize(
    ("hosts", "victim", "beats", "more"), [(pairs(5), 7, 4, 5), ([(k,) for k in range(256)], 9, 8, 6)], ids=["5", "256"]
)
def test_a_death_takes_one_trip(hosts: list[tuple[int, ...]], victim: int, beats: int, more: int) -> None:
    """Heartbeats are few, also among many hosts: so many of each, four times a second."""
    net = FakeNetwork(hosts)
    net.run(0.9)
    assert net.sent == len(hosts) * beats * 4
    net.step(victim % len(hosts), Ended(victim, KILLED.words))
    net.run(0.004)
    assert all(memory.gone == {victim: KILLED} for memory in net.memories)
    before = net.sent
    net.run(0.996)
    assert net.sent - before <= more * len(hosts) * beats  # four beats, and what confirms: nothing is told again


def test_asking_rank_hears_what_another_does() -> None:
    net = FakeNetwork([(0, 1), (2,)])
    net.run(0.3)
    net.step(0, Said(1, "look", [2, 77]))
    net.run(0.02)
    assert [value for value in net.told[0] if value[1][0] == "sight"] == [(1, ["sight", 77, "rank 2 computes"])]
    net.step(1, Ended(2, KILLED.words))
    net.step(0, Said(0, "look", [2, 78]))
    net.run(1.0)
    assert len(net.heard(0, "sight")) == 1


@settings(max_examples=30)
@given(**BAD_NETWORKS)
def test_pushes_arrive(**bad: float) -> None:
    """Also where the group is not used yet; the last of it counts."""
    net = FakeNetwork([(0,), (1,), (2,)], **bad)
    for host in (0, 1):
        net.step(host, Said(host, "register", [WORLD, START, range(3)]))
    for number in (4, 5, 6):
        net.speak(0, 0, number)
        net.run(0.004)
    net.run(1.0)
    assert net.memories[1].said(WORLD, 0) == 6
    net.step(2, Said(2, "register", [WORLD, START, (0, 1, 2)]))
    assert net.memories[2].said(WORLD, 0) == 6
    before = net.sent
    net.step(0, Said(0, "wake", [WORLD]))  # nothing new
    assert net.sent == before


def test_pages_of_many_groups_are_acknowledged() -> None:
    """Though no rank there ever uses these groups. The latest ones are kept."""
    net = FakeNetwork([(0,), (1,)])
    last = WORLD + 1100
    for gid in range(WORLD, last + 1):
        net.step(0, Said(0, "register", [gid, START, (0, 1)]))
        net.speak(0, 0, gid, gid)
        net.run(0.003)
    net.run(0.1)
    before = net.sent
    net.run(1.0)
    assert net.sent - before <= 10  # beats only: nothing is sent again
    net.step(1, Said(1, "register", [last, START, (0, 1)]))
    assert net.memories[1].said(last, 0) == last


def test_members_are_written_by_their_host_only() -> None:
    net = FakeNetwork([(0,), (1,), (2,)], registered=True)
    net.memories[2].say(WORLD, 1, 9)
    page = MemberPage.of(1, 99, net.memories[2].pages[WORLD, 1])
    net.step(0, Datagram(2, 0, Pages(WORLD, 0, (page,))))
    assert net.memories[0].said(WORLD, 1) == 0
    net.step(0, Datagram(1, 0, Pages(WORLD, 0, (page,))))
    assert net.memories[0].said(WORLD, 1) == 9


def test_to_leave_takes_a_few_trips() -> None:
    net = FakeNetwork(pairs(3), registered=True)
    net.run(1.0)
    for rank in (4, 1, 0, 3, 5, 2):
        net.step(rank % 3, Said(rank, "close") if rank % 2 else Ended(rank, "died"))
    assert net.until(lambda: all(machine.done for machine in net.machines)) < 0.05


@pytest.mark.parametrize("outage_s", [0.9, 1.1, 1.2, 1.3, 1.4])
def test_host_leaves_after_its_last_words_arrive(outage_s: float) -> None:
    """Though the network is out for nearly as long as hosts may be silent."""
    net = FakeNetwork([(0,), (1,)], registered=True)
    net.run(1.0)
    net.memories[1].say(WORLD, 1, 5)
    net.reaches = lambda _a, _b: False
    net.step(1, Said(1, "close"))
    net.run(outage_s)
    net.reaches = lambda _a, _b: True
    net.until(lambda: net.machines[1].done)
    assert net.memories[0].said(WORLD, 1) == 5
    assert not net.lost(0)


def test_host_without_network_ends() -> None:
    net = FakeNetwork(pairs(2))
    net.run(1.0)
    net.reaches = lambda _a, _b: False
    for rank in (0, 2):
        net.step(0, Said(rank, "close"))
    assert net.until(lambda: net.machines[0].done) < 2.5


def test_last_living_rank_releases_the_group() -> None:
    net = FakeNetwork([(0, 1, 2), (3,)], registered=True)
    net.step(0, Ended(1, "died"))
    net.step(0, Said(0, "forget", [WORLD]))
    assert WORLD in net.memories[0].groups
    assert not net.heard(0, "forgotten")
    net.step(0, Said(2, "forget", [WORLD]))
    assert WORLD not in net.memories[0].groups
    assert ["forgotten", WORLD] in net.heard(0, "forgotten")
    net.run(1.0)  # what is late is not read or written there: the fake memory would say so


def test_own_record_of_a_dead_rank_wins() -> None:
    net = FakeNetwork([(0, 1), (2,)], registered=True)
    net.memories[0].gone[1] = Departure(DepartureKind.RAISED, "raised ValueError")
    net.step(0, Ended(1, "exited with code 1"))
    net.memories[0].gone[0] = Departure(DepartureKind.ABORTED, "aborted the group")
    net.step(0, Ended(0, "exited with code 2"))
    net.run(0.1)
    assert net.memories[1].gone[1] == (DepartureKind.RAISED, "raised ValueError")
    assert net.heard(1, "gone")[1][2:] == [DepartureKind.DIED, "exited with code 2"]


@pytest.mark.parametrize(
    ("gid", "start", "members"),
    [(8, START + 1, (0, 1)), (8, START, (0, 0)), (8, START, (0, 5)), (8, START, (1,)), (WORLD, START, (1, 0)),
     (WORLD, 2 * START, (0, 1))],
)  # fmt: skip
def test_impossible_groups_are_refused(gid: int, start: int, members: tuple[int, ...]) -> None:
    net = FakeNetwork([(0,), (1,)], registered=True)
    with pytest.raises(ValueError):
        net.step(0, Said(0, "register", [gid, start, members]))


DIGITS = st.integers(0, 9)
PAGES = st.builds(MemberPage, DIGITS, DIGITS, st.text(max_size=30))
FACTS = st.builds(Fact, st.sampled_from(FactKind), DIGITS, DIGITS, st.text(max_size=9))
BODIES = st.one_of(
    st.builds(Heartbeat, st.booleans(), st.lists(DIGITS, max_size=8).map(tuple)),
    st.builds(News, st.lists(FACTS, max_size=4).map(tuple)),
    st.builds(Query, st.integers(5, 9), st.integers(0, 3)),
    st.builds(Ack, st.integers(5, 9), DIGITS, DIGITS),
    st.builds(Pages, st.integers(5, 9), st.integers(0, 3), st.lists(PAGES, max_size=3).map(tuple)),
)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 9), BODIES), max_size=12))
def test_any_datagram_leaves_a_sentinel_alive(said: list[tuple[int, int, object]]) -> None:
    net = FakeNetwork(pairs(3), registered=True)
    net.step(0, Said(0, "ask", [WORLD, 1]))
    for sender, digest, body in said:
        net.step(0, Datagram(sender, digest, body))
        net.run(0.02)


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


def test_half_of_the_lowest_host_left_goes_on() -> None:
    net = FakeNetwork(pairs(5))
    net.run(3.0)
    net.stopped.add(0)
    net.run(9.0)
    net.cut((0,), (1, 2), (3, 4))
    net.run(2.4)
    assert net.cut_off() - {0} == {3, 4}


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
