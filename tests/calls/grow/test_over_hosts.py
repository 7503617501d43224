"""A group over hosts gets new ranks, on a host of the job or on a new one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from tests.fuzz.ranks import make_every_call
from tests.support.newcomers import catch_up, newcomer, tell, told
from tests.support.on_ranks import in_new_world
from tests.support.ports import free_port
from tests.support.ucx import why_no_ucx
from tests.support.waiting import until
from unisono.ranks.elastic import larger_world, store_door
from unisono.ranks.elastic.admission_over_hosts import AdmissionOverHosts
from unisono.ranks.group import survivors, world_over_hosts
from unisono.ranks.rendezvous.asked_store import AskedStore
from unisono.ranks.rendezvous.identity import Identity
from unisono.ranks.rendezvous.rendezvous import _Meeting

DEADLINE_S = 100.0


@pytest.fixture
def door() -> str:
    """An address where nobody listens yet."""
    return f"127.0.0.1:{free_port()}"


def calls(group: unisono.Group) -> int:
    """Make calls of each kind in this group; its size."""
    make_every_call(group, (3, 20_000))
    return group.size


def nothing() -> None:
    """A newcomer does no more than to join."""


def joins(
    folder: Path,
    name: str,
    door: str,
    host: str,
    work: Callable[[unisono.Group], dict[str, object]],
    before: Callable[[], None] = nothing,
) -> None:
    """A process on this host that joins, and tells what it has found."""

    def join() -> None:
        os.environ["UNISONO_HOST_ID"] = host
        before()
        tell(folder, name, **work(unisono.join(door, timeout_s=DEADLINE_S)))
        unisono.shutdown()  # the last messages leave

    newcomer(join)


def comes(folder: Path, name: str, door: str, host: str, before: Callable[[], None] = nothing) -> None:
    """A process on this host that joins and makes the calls."""
    joins(folder, name, door, host, lambda group: {
        "gives": calls(group), "rank": group.rank, "newcomers": group.newcomers, "hosts": group.hosts.text
    }, before)  # fmt: skip


def run(work: Callable[..., object], hosts: str, *arguments: object) -> Sequence[object]:
    return unisono.run(work, None, arguments, hosts=hosts, timeout_s=DEADLINE_S, return_exceptions=True)


@pytest.mark.parametrize(("shape", "host", "larger"), [
    ("2x1", "1", "1+2"), ("2x1", "new", "3x1"), ("2x2", "0", "3+2 (0 1 4 | 2 3)"), ("2x2", "new", "2+2+1"),
])  # fmt: skip
def test_a_process_joins(tmp_path: Path, shape: str, host: str, larger: str, door: str) -> None:
    def work() -> object:
        group = unisono.init()
        size = group.size
        assert unisono.grow(door=door) is group
        if group.rank == 0:
            comes(tmp_path, "one", door, host)
        bigger = unisono.grow(size=size + 1, door=door)
        assert (bigger.rank, bigger.newcomers) == (group.rank, (size,))
        assert unisono.init() is bigger
        with pytest.raises(unisono.PeerFailed, match="went on in group"):
            unisono.barrier(group)
        return [bigger.hosts.text, calls(bigger)]

    size = 2 if shape == "2x1" else 4
    assert run(work, shape) == [[larger, size + 1]] * size
    until(lambda: bool(told(tmp_path)))
    assert told(tmp_path) == {"one": {"gives": size + 1, "rank": size, "newcomers": [size], "hosts": larger}}


@pytest.mark.skipif(bool(why_no_ucx()), reason=why_no_ucx() or "it is installed")
def test_by_ucx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str) -> None:
    """The newcomer is not forked from a rank: it would have UCX's state, and none of its threads."""
    monkeypatch.setenv("UNISONO_CARRIER", "ucx")
    comes(tmp_path, "one", door, "new")

    def work() -> object:
        return calls(unisono.grow(size=3, door=door))

    assert run(work, "2x1") == [3] * 2


def barriers() -> None:
    while True:
        unisono.barrier()


def test_several_at_once_and_again_and_then_fewer(tmp_path: Path, door: str) -> None:
    """Two come, then one; a rank of the first two dies; one more comes."""

    def stays(name: str, host: str) -> None:
        joins(tmp_path, name, door, host, lambda group: {"gives": last(group) if name != "last" else calls(group)})

    def last(group: unisono.Group) -> object:
        """From the group of four on."""
        if group.size == 4:
            group = unisono.grow(size=5, door=door)
            assert group.newcomers == (4,)
        unisono.barrier()
        if group.rank == 2:
            unisono.barrier()  # all have ended the first one
            die()
        with pytest.raises(unisono.PeerGone):
            barriers()
        if group.rank == 0:
            stays("last", "other")
        group = unisono.grow(group.shrink(), size=5, door=door)
        assert group.newcomers == (4,)
        return calls(group)

    def work() -> object:
        group = unisono.init()
        if group.rank == 1:
            for number, host in enumerate(("0", "new")):
                stays(f"{number}", host)
        group = unisono.grow(size=4, door=door)
        assert group.newcomers == (2, 3)
        if group.rank == 0:
            stays("third", "1")
        return last(group)

    assert run(work, "2x1") == [5] * 2
    until(lambda: len(told(tmp_path)) == 3)
    assert [one["gives"] for one in told(tmp_path).values()] == [5] * 3


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sum_of_who_is_left(group: unisono.Group) -> float:
    while True:
        mine = torch.full((5000,), 10.0**group.rank)
        try:
            unisono.all_reduce(mine, group=group)
            unisono.barrier(group)
        except unisono.PeerGone:
            group = group.shrink()
        else:
            return mine[-1].item()


def before(owner: object, name: str) -> Callable[[], None]:
    """Die at the begin of this function."""

    def patch() -> None:
        setattr(owner, name, die)

    return patch


def after(owner: object, name: str) -> Callable[[], None]:
    """Die at the end of this function."""

    def patch(call: Callable[..., object] = getattr(owner, name)) -> None:  # noqa: B008
        def then_die(*args: object, **kwargs: object) -> None:
            call(*args, **kwargs)
            die()

        setattr(owner, name, then_die)

    return patch


STEPS = {
    "before the meeting": before(larger_world, "meet"),
    "in the meeting": before(_Meeting, "_take_part"),
    "after the meeting": after(larger_world, "meet"),
    "while the hosts connect": before(world_over_hosts, "_maker"),
    "when it has the world": after(larger_world, "world_group"),
    "when it votes": before(survivors, "find_memory"),
    "when all have voted": after(larger_world, "_all_or_none"),
}
FIRST_STEPS = {
    "when it looks for newcomers": before(store_door.StoreDoor, "present"),
    "when it invites": before(store_door.StoreDoor, "invite"),
    "when it has invited": after(store_door.StoreDoor, "invite"),
}
"""Of the first rank."""


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("host", ["1", "new"])
@pytest.mark.parametrize("step", ["before it asks", "when it has come", "when it has a place", *STEPS])
def test_a_newcomer_that_dies(tmp_path: Path, step: str, host: str, door: str) -> None:
    """The old group goes on, or the larger one without it; the next newcomer gets in."""
    more = {"before it asks": before(store_door, "_place"), "when it has come": before(AskedStore, "value")}
    more["when it has a place"] = before(store_door, "larger_world")
    is_in = step == "when all have voted"

    def work() -> object:
        larger_world.MEET_S = 5.0
        group = unisono.init()
        if group.rank == 0:
            comes(tmp_path, "dies", door, host, {**STEPS, **more}[step])
        grown = unisono.grow(size=3, timeout_s=3.0, door=door)
        assert (grown is not group) == is_in
        if is_in:
            with pytest.raises(unisono.PeerGone) as caught:
                unisono.barrier()
            assert caught.value.failed == (2,)
            grown = grown.shrink()
        if grown.rank == 0:
            comes(tmp_path, "lives", door, host)
        return calls(unisono.grow(size=3, door=door))

    assert run(work, "2x1") == [3] * 2
    until(lambda: bool(told(tmp_path)))
    assert told(tmp_path)["lives"]["gives"] == 3


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize(("step", "rank"), [*product(STEPS, [0, 1, 3]), *product(FIRST_STEPS, [0])])
def test_a_member_that_dies(tmp_path: Path, step: str, rank: int, door: str) -> None:
    """The others are of one mind: all have the larger group, or all the old one, which they shrink."""

    def hurry() -> None:
        larger_world.MEET_S = 5.0

    def work() -> list[object]:
        hurry()
        group = unisono.init()
        if group.rank == 2:
            joins(tmp_path, "it", door, "new", lambda group: {"sum": sum_of_who_is_left(group)}, hurry)
        if group.rank == rank:
            {**STEPS, **FIRST_STEPS}[step]()
        said = 0
        try:
            larger = unisono.grow(size=5, timeout_s=20.0, door=door)
            said = larger.size
        except unisono.PeerGone:
            larger = unisono.grow(group.shrink(), size=4, timeout_s=30.0, door=door)
        return [said, sum_of_who_is_left(larger)]

    done = run(work, "2x2")
    said = 5 if step == "when all have voted" else 0
    assert [one for one in done if isinstance(one, list)] == [[said, 1111.0]] * 3
    until(lambda: bool(told(tmp_path)))
    assert told(tmp_path) == {"it": {"sum": 1111.0}}


def test_a_member_that_is_late_keeps_the_group_as_it_is(tmp_path: Path, door: str) -> None:
    """It has met the others, and votes when they have given up. Then all try again."""

    def hurry() -> None:
        larger_world._AGREE_S = 1.0

    def work() -> object:
        hurry()
        group = unisono.init()
        if group.rank == 0:
            comes(tmp_path, "one", door, "new", hurry)
            fails = AdmissionOverHosts.has_failed

            def has_failed(admission: AdmissionOverHosts, error: Exception) -> None:
                if "failed" not in told(tmp_path):
                    tell(tmp_path, "failed", error=str(error))
                fails(admission, error)

            AdmissionOverHosts.has_failed = has_failed  # type: ignore[method-assign]
        elif group.rank == 1:
            find = survivors.find_memory

            def find_memory(*args: Any) -> bool:
                until(lambda: "failed" in told(tmp_path))
                return find(*args)

            survivors.find_memory = find_memory
        return calls(unisono.grow(size=3, door=door))

    assert run(work, "2x1") == [3] * 2
    assert "rank 1" in str(told(tmp_path)["failed"]["error"])


def test_a_newcomer_that_does_not_fit_is_refused(tmp_path: Path, door: str) -> None:
    def tries(name: str, change: Callable[[], None]) -> None:
        def join() -> None:
            change()
            try:
                unisono.join(door, timeout_s=DEADLINE_S)
            except unisono.ArgumentError as error:
                tell(tmp_path, name, said=str(error))

        newcomer(join)

    def other_version() -> None:
        mine = Identity.mine()
        Identity.mine = classmethod(lambda _cls: mine.replace(version="0.0.1"))  # type: ignore[method-assign,assignment]

    def other_link() -> None:
        os.environ["UNISONO_LINK"] = "1Mbit"
        os.environ["UNISONO_HOST_ID"] = "new"

    def work() -> float:
        group = unisono.init()
        if group.rank == 0:
            tries("version", other_version)
            tries("link", other_link)
        while not catch_up(group, len(told(tmp_path)) == 2):
            assert unisono.grow(size=3, timeout_s=0.3, door=door) is group
        return sum_of_who_is_left(group)

    assert run(work, "2x1") == [11.0, 11.0]
    said = {name: str(one["said"]) for name, one in told(tmp_path).items()}
    assert "do not let this process in: rank 2" in said["version"]
    assert "has unisono 0.0.1" in said["version"]
    assert "UNISONO_LINK to the same" in said["link"]


def test_what_comes_from_other_programs_is_not_believed(tmp_path: Path, door: str) -> None:
    def work() -> object:
        group = unisono.init()
        assert unisono.grow(door=door) is group
        if group.rank == 0:
            store = group.world.join_listener.store
            for number, said in enumerate((b"[]", b"{}", b"\xff\xfe", b"[" * 9000)):
                store.set(f"came {group.world.join_listener.meeting} {number}", said)
            comes(tmp_path, "one", door, "new")
        return calls(unisono.grow(size=3, door=door))

    assert run(work, "2x1") == [3] * 2


@in_new_world(hosts="2x1")
def test_doors_that_cannot_be() -> None:
    """All ranks raise, and the group goes on."""
    for door, words in (
        (None, "door=None: over hosts"),
        ("training", "door='training'"),
        ("192.0.2.1:80", "the first rank cannot listen there"),
    ):
        with pytest.raises(unisono.ArgumentError, match=words):
            unisono.grow(door=door)
    with pytest.raises(unisono.ArgumentError, match="size=1: this group has 2 ranks, and can have 1024"):
        unisono.grow(size=1, door="127.0.0.1:29999")
    unisono.barrier()


def test_a_group_of_one_host_that_names_an_address_grows_to_another(tmp_path: Path, door: str) -> None:
    def work() -> object:
        if unisono.get_rank() == 0:
            comes(tmp_path, "one", door, "new")
        larger = unisono.grow(size=3, door=door)
        return [larger.hosts.text, calls(larger)]

    assert unisono.run(work, 2, timeout_s=DEADLINE_S) == [["2+1", 3]] * 2
