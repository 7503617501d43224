"""`torch.distributed._reconfigure`: ranks come and go, fail and stop, and the process group goes on."""

import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from tests.support.member import Member, form, tell_all
from tests.support.programs import Python
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not hasattr(dist, "_reconfigure"), reason="this torch cannot reconfigure groups")

Start = Callable[..., list[Member]]


@pytest.fixture
def start(python: Python) -> Start:
    """start("gloo", "001"): as many members as the word has letters, each of them a host."""

    def members(backend: str = "unisono", hosts: str = "000", **variables: object) -> list[Member]:
        named = {"UNISONO_AS": "gloo"} if backend == "gloo" else {}
        made = [Member(python, backend, UNISONO_HOST_ID=host, **named, **variables) for host in hosts]
        assert all(one.handle for one in made)
        return made

    return members


def failed(answer: Any, kind: str) -> str:
    """The message of an error of this kind, which is also a RuntimeError."""
    assert isinstance(answer, dict), answer
    assert {kind, "RuntimeError", "DistBackendError"} <= set(answer["error"]), answer
    text: str = answer["text"]
    return text


@pytest.mark.parametrize(("backend", "hosts"), [("unisono", "0000"), ("unisono", "0011"), ("gloo", "0000")])
def test_ranks_come_and_go(start: Start, backend: str, hosts: str) -> None:
    members = start(backend, hosts)
    for uuid, chosen in enumerate([[0, 1, 2], [2, 0], [0], [3, 1], [1, 2, 3, 0], [0, 3, 1, 2]]):
        some = [members[index] for index in chosen]
        assert form(some, uuid) == [[rank, len(some)] for rank in range(len(some))]
        pids = [one.process.pid for one in some]
        assert tell_all(some, "pids") == [pids] * len(some)
    by_handle = sorted(members, key=lambda one: one.handle)
    form(members, 10, as_set=True)
    assert tell_all(members, "pids") == [[one.process.pid for one in by_handle]] * 4


def test_refused_calls_leave_the_group_as_it_is(start: Start) -> None:
    members = one, other = start(hosts="00")
    assert "has not been initialized. Call reconfigure()" in failed(one.tell("total"), "NotInitialized")
    assert "has not been initialized" in failed(one.tell("part", 0), "NotInitialized")
    assert form(members, 5) == [[0, 2], [1, 2]]
    for uuid, handles, words in (
        (6, [one.handle, "gloo:1:-1:"], "'gloo:1:-1:' is not a handle of unisono.*UNISONO_AS=gloo"),
        (6, [one.handle, one.handle.replace("{", "[")], "is not a handle"),
        (6, [one.handle, f"0{one.handle}"], "is not a handle"),
        (6, [], "0 handles"),
        (6, [one.handle, one.handle], "2 of them this rank's"),
        (6, [other.handle], "0 of them this rank's"),
        (5, [one.handle], "uuid: got 5, which was already used"),
    ):
        text = failed(one.tell("form", uuid, handles, 5), "ArgumentError")
        assert re.search(words, text), text
    assert tell_all(members, "total") == [[3.0]] * 2


def test_ranks_with_other_handles_do_not_meet(start: Start) -> None:
    members = one, other, third = start()
    for member in (other, third):
        member.ask("form", 1, [one.handle, member.handle], 2)
    one.ask("form", 1, [one.handle, other.handle], 2)
    answers = [member.answer() for member in members]
    kinds = [answer["error"][0] if isinstance(answer, dict) else answer for answer in answers]
    assert kinds in ([[0, 2], [1, 2], "ArgumentError"], ["ArgumentError", "ArgumentError", "WaitTimeout"])
    assert any("another rank passed different handles" in answer["text"] for answer in answers if "text" in answer)
    assert form(members, 2) == [[0, 3], [1, 3], [2, 3]]


@pytest.mark.parametrize("hosts", ["0000", "0011"])
@pytest.mark.parametrize("victim", [0, 2])
def test_newcomer_replaces_a_killed_rank(start: Start, victim: int, hosts: str) -> None:
    members = start(hosts=hosts)
    assert form(members, 1)[3] == [3, 4]
    gone = members.pop(victim)
    for one in members:
        one.ask("total", 50_000)
    gone.send(signal.SIGKILL)
    for answer in [one.answer() for one in members]:
        assert failed(answer, "PeerGone")
        assert answer["rank"] == victim
    members += start(hosts=hosts[victim])
    assert form(members, 2) == [[rank, 4] for rank in range(4)]
    assert tell_all(members, "total", 50_000) == [[10.0]] * 4


def test_calls_under_way_raise_why(start: Start) -> None:
    members = one, other, third = start()
    form(members, 1)
    one.ask("total")
    other.tell("begin")
    third.ask("form", 2, [third.handle, other.handle, one.handle], 30)
    for answer in (one.answer(), other.tell("end")):
        assert "rank 2 aborted group" in (text := failed(answer, "PeerFailed"))
        assert "its ranks change, by reconfigure() with uuid 2" in text
    for member in (one, other):
        member.ask("form", 2, [third.handle, other.handle, one.handle], 30)
    assert [member.answer() for member in members] == [[2, 3], [1, 3], [0, 3]]
    assert tell_all(members, "total") == [[6.0]] * 3


def test_stopped_rank_is_left_out_and_returns(start: Start) -> None:
    members = one, other, third = start()
    form(members, 1)
    third.send(signal.SIGSTOP)
    third.ask("total")
    assert form([one, other], 2) == [[0, 2], [1, 2]]
    assert tell_all([one, other], "total") == [[3.0]] * 2
    third.send(signal.SIGCONT)
    assert "its ranks change" in failed(third.answer(), "PeerFailed")
    assert form(members, 3) == [[0, 3], [1, 3], [2, 3]]
    assert tell_all(members, "total") == [[6.0]] * 3


def test_training_goes_on(start: Start) -> None:
    """Without a rank, DistributedDataParallel goes on as it is; with a newcomer, all ranks wrap the model again."""
    members = start()
    form(members, 1)
    tell_all(members, "wrap")
    assert tell_all(members, "step") == [[0.75, 0.5]] * 3
    members.pop(0).send(signal.SIGKILL)
    for answer in tell_all(members, "step"):
        assert failed(answer, "PeerGone")
    form(members, 2)
    assert tell_all(members, "step") == [[0.5, 0.125]] * 2
    members += start(hosts="0")
    form(members, 3)
    tell_all(members, "wrap")
    assert tell_all(members, "step") == [[0.25, -0.375]] * 3


def test_meetings_leave_nothing_behind(start: Start) -> None:
    """A group may have a few more or less at a time, such as to watch a process; ten meetings leave nothing each."""
    members = start(hosts="001")
    form(members, 0)
    tell_all(members, "pids")
    form(members, 1)
    before = tell_all(members, "left")
    for uuid in range(2, 12):
        form(members, uuid)
        tell_all(members, "pids")

    def few_more() -> bool:  # at most 5 descriptors and 2 threads a process
        pairs = zip(tell_all(members, "left"), before, strict=True)
        return all(files <= had + 5 and threads <= ran + 2 for (files, threads), (had, ran) in pairs)

    until(few_more)
