"""The protocol of sentinels, without processes: lossy networks, cuts, stops, many hosts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.support.fake_network import BAD_NETWORKS, KILLED, START, WORLD, FakeNetwork, pairs
from unisono.base.records import Departure, DepartureKind
from unisono.hosts.sentinel.state_machine import Ended, Said
from unisono.hosts.sentinel.wire import Ack, Datagram, Fact, FactKind, Heartbeat, MemberPage, News, Pages, Query

pytestmark = pytest.mark.quick


@settings(max_examples=40, deadline=None)
@given(**BAD_NETWORKS, hosts=st.integers(2, 6), dead=st.sets(st.integers(0, 11), min_size=1, max_size=4))
def test_death_is_known_over_bad_networks(hosts: int, dead: set[int], **bad: float) -> None:
    net = FakeNetwork(pairs(hosts), **bad)
    dead = {rank % (2 * hosts) for rank in dead}
    net.run(0.3)
    for rank in dead:
        net.step(rank % hosts, Ended(rank, f"died as {rank}"))
    net.run(1.2)
    for host in range(hosts):
        assert net.memories[host].gone == {rank: (DepartureKind.DIED, f"died as {rank}") for rank in dead}
        assert sorted(value[1] for value in net.heard(host, "gone")) == sorted(dead)
        assert not net.lost(host)


def test_parent_may_report_a_living_rank_as_gone() -> None:
    """It runs another program now. A rank that has returned from its function is still there."""
    net = FakeNetwork(pairs(3))
    net.memories[1].depart(4, DepartureKind.DIED, "runs another program now")
    net.memories[1].depart(1, DepartureKind.RETURNED, "returned from the function")
    net.run(1.0)
    assert all(memory.gone[4].words == "runs another program now" for memory in net.memories)
    assert not any(1 in memory.gone for memory in (net.memories[0], net.memories[2]))


@pytest.mark.parametrize(("hosts", "beats", "more"), [(5, 4, 5), (256, 8, 6)])
def test_a_death_takes_one_trip(hosts: int, beats: int, more: int) -> None:
    """Heartbeats are few, also among many hosts: so many of each, four times a second."""
    net = FakeNetwork([(k,) for k in range(hosts)])
    net.run(0.9)
    assert net.sent == hosts * beats * 4
    net.step(4, Ended(4, KILLED.words))
    net.run(0.004)
    assert all(memory.gone == {4: KILLED} for memory in net.memories)
    before = net.sent
    net.run(0.996)
    assert net.sent - before <= more * hosts * beats  # four beats, and what confirms: nothing is told again


def test_tickets_of_a_host_share_a_query() -> None:
    net = FakeNetwork([(0, 1, 2), (3,)], registered=True)
    net.step(0, Said(0, "ask", [WORLD, 1]))
    net.memories[1].say(WORLD, 3, 5)
    net.run(0.0001)
    before = net.sent
    for rank in (0, 1, 2):
        net.step(0, Said(rank, "ask", [WORLD, 2]))
    assert net.sent == before
    net.run(0.02)
    assert [value for value in net.told[0] if value[1][0] == "fresh"] == [
        (0, ["fresh", 1]), (0, ["fresh", 2]), (1, ["fresh", 2]), (2, ["fresh", 2]),
    ]  # fmt: skip


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


@settings(max_examples=30, deadline=None)
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


def test_killed_processes_reuse_no_number() -> None:
    """They begin from the same state, so their pages would count as old."""
    net = FakeNetwork([(0,), (1,)], kills=True, registered=True)
    net.run(0.1)
    for number in (4, 5, 6):
        net.memories[0].say(WORLD, 0, number)
        net.kill(0)
        net.run(0.1)
        assert net.memories[1].said(WORLD, 0) == number


def test_pages_of_many_groups_are_acknowledged() -> None:
    """Though no rank there ever uses these groups. The latest ones are kept."""
    net = FakeNetwork([(0,), (1,)])
    last = WORLD + 1100
    for gid in range(WORLD, last + 1):
        net.step(0, Said(0, "register", [gid, START, (0, 1)]))
        net.speak(0, 0, gid, gid)
        net.run(0.003)
    net.run(0.1)
    assert net.machines[0]._copies.settled
    net.step(1, Said(1, "register", [last, START, (0, 1)]))
    assert net.memories[1].said(last, 0) == last


@settings(max_examples=30, deadline=None)
@given(**BAD_NETWORKS)
def test_ticket_follows_earlier_pushes(**bad: float) -> None:
    """So they know it, should this host be lost now."""
    net = FakeNetwork([(0,), (1,), (2,)], **bad, registered=True)
    for number in (4, 5, 6):
        net.speak(0, 0, number)
        net.step(0, Said(0, "ask", [WORLD, number]))
        net.until(lambda number=number: (0, ["fresh", number]) in net.told[0])
        assert [memory.said(WORLD, 0) for memory in net.memories] == [number] * 3


def test_members_are_written_by_their_host_only() -> None:
    net = FakeNetwork([(0,), (1,), (2,)], registered=True)
    net.memories[2].say(WORLD, 1, 9)
    page = MemberPage.of(1, 99, net.memories[2].pages[WORLD, 1])
    net.step(0, Datagram(2, 0, Pages(WORLD, 0, (page,))))
    assert net.memories[0].said(WORLD, 1) == 0
    net.step(0, Datagram(1, 0, Pages(WORLD, 0, (page,))))
    assert net.memories[0].said(WORLD, 1) == 9


@settings(max_examples=30, deadline=None)
@given(**BAD_NETWORKS, order=st.permutations(range(6)), last_words=st.booleans())
def test_empty_hosts_leave_and_are_not_lost(order: list[int], last_words: bool, **bad: float) -> None:
    net = FakeNetwork(pairs(3), **bad, registered=True)
    net.run(0.2)
    for rank in order:
        host = rank % 3
        net.memories[host].say(WORLD, rank, 100 + rank)
        if rank % 2:
            net.step(host, Ended(rank, f"died as {rank}"))
        else:
            if last_words:
                net.memories[host].gone[rank] = Departure(DepartureKind.RETURNED, "returned")
            net.step(host, Said(rank, "close"))
        net.run(1.2 if rank == order[-2] else 0.05)
    net.run(3.7)
    assert all(machine.done for machine in net.machines)
    assert not any(map(net.lost, range(3)))
    last = order[-1] % 3
    for rank in order:
        said = DepartureKind.RETURNED if last_words else DepartureKind.LEFT
        assert net.memories[last].gone[rank].how == (DepartureKind.DIED if rank % 2 else said)
        assert net.memories[last].said(WORLD, rank) == 100 + rank


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
    net.until(lambda: (FactKind.LEFT, 1) in net.machines[0]._gossip.facts)
    assert net.memories[0].said(WORLD, 1) == 5
    assert not net.lost(0)
    net.until(lambda: net.machines[1].done)


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


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 9), BODIES), max_size=12))
def test_any_datagram_leaves_a_sentinel_alive(said: list[tuple[int, int, object]]) -> None:
    net = FakeNetwork(pairs(3), registered=True)
    net.step(0, Said(0, "ask", [WORLD, 1]))
    for sender, digest, body in said:
        net.step(0, Datagram(sender, digest, body))  # type: ignore[arg-type]
        net.run(0.02)
