"""The join listener of a job: the kernel says which process connects, and what it sends is not believed."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.faults import DEADLINE_S
from tests.support.waiting import until
from unisono.base.errors import ArgumentError
from unisono.base.fd_channel import PlainChannel, connect
from unisono.engine.memory.arena import Arena
from unisono.engine.process.alive import start_ticks
from unisono.ranks.elastic.join_admission import _places
from unisono.ranks.elastic.join_request import ANY, JoinListener, JoinRequest, Offer, job_name, socket_name


@pytest.fixture
def listener() -> Iterator[JoinListener]:
    listener = JoinListener(secrets.token_hex(8))
    yield listener
    listener.close()


def come(listener: JoinListener) -> PlainChannel:
    return connect(socket_name(listener.job), time.monotonic() + DEADLINE_S)


def ended(channel: PlainChannel) -> bool:
    try:
        return channel.poll() is not None
    except EOFError:
        return True


def test_a_process_that_asks_waits_until_it_goes(listener: JoinListener) -> None:
    first, second = come(listener), come(listener)
    first.send(["join", 2, os.getpid()])
    second.send(["join", ANY, os.getpid()])
    until(lambda: len(listener.requests()) == 2)
    assert [(one.pid, one.ticks) for one in listener.requests()] == [(os.getpid(), start_ticks(os.getpid()))] * 2
    assert {request.rank for request in listener.requests()} == {2, ANY}
    first.close()
    until(lambda: [request.rank for request in listener.requests()] == [ANY])


@pytest.mark.parametrize(
    "said",
    [
        None,
        "join",
        ["join"],
        ["join", 1],
        ["join", -2, "me"],
        ["join", "1", "me"],
        ["leave", 1, "me"],
        {"join": 1},
        [[]],
    ],
)
def test_what_is_no_request_is_refused(listener: JoinListener, said: Any) -> None:
    channel = come(listener)
    channel.send([os.getpid() if word == "me" else word for word in said] if isinstance(said, list) else said)
    until(lambda: not listener.requests() and ended(channel))


def test_a_process_of_another_container_hears_why(listener: JoinListener) -> None:
    channel = come(listener)
    channel.send(["join", ANY, os.getpid() + 1])
    until(lambda: not listener.requests() and not listener._newcomers.silent)
    message = channel.receive(time.monotonic() + DEADLINE_S).value
    assert message[0] == "refused"
    assert "another container" in message[1]


def test_many_silent_connections_hold_no_process_up(listener: JoinListener) -> None:
    silent = [come(listener) for _ in range(400)]
    channel = come(listener)
    channel.send(["join", 1, os.getpid()])
    until(lambda: len(listener.requests()) == 1)
    assert len(listener._newcomers.silent) <= 128
    for one in silent:
        one.close()


def test_descriptors_that_a_request_brings_are_closed(listener: JoinListener) -> None:
    channel = come(listener)
    end, start = os.pipe()
    channel.send(["join", 1, os.getpid()], fds=[start])
    os.close(start)
    until(lambda: len(listener.requests()) == 1)
    assert os.read(end, 1) == b"", "nobody holds the other end"
    os.close(end)


def test_a_job_has_one_listener(listener: JoinListener) -> None:
    with pytest.raises(OSError, match="in use"):
        JoinListener(listener.job)
    listener.close()
    JoinListener(listener.job).close()


def test_a_forked_child_of_this_process_does_not_keep_it_open(listener: JoinListener) -> None:
    """Ranks have children, such as the workers of a DataLoader, which may outlive them for a while."""
    code = (
        "import os, sys, time, unisono\n"
        "from unisono.ranks.elastic.join_request import JoinListener\n"
        "group = unisono.init()\n"
        "group.world.join_listener = JoinListener(sys.argv[1])\n"
        "if os.fork() == 0:\n"
        "    print('child', flush=True)\n"
        "    sys.stdin.read()\n"
        "os._exit(0)\n"
    )
    listener.close()
    with subprocess.Popen(
        [sys.executable, "-c", code, listener.job], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "child\n"
        process.wait()
        JoinListener(listener.job).close()
        process.communicate("")


def test_places_go_to_who_wants_them_first() -> None:
    def request(rank: int) -> JoinRequest:
        return JoinRequest(SimpleNamespace(), 1, 1, rank)  # type: ignore[arg-type]  # no connection is needed

    any_1, any_2, three, three_too, five = request(ANY), request(ANY), request(3), request(3), request(5)
    assert _places([any_1, three, three_too, any_2, five], [1, 3, 4]) == {1: any_1, 3: three, 4: any_2}
    assert _places([three], [1]) == {}
    assert _places([any_1, any_2], [2]) == {2: any_1}


def test_the_name_of_a_job() -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234"}
    assert job_name(None, place) == job_name(None, {**place, "RANK": "1"})
    assert job_name(None, place) != job_name(None, {**place, "MASTER_PORT": "1235"})
    assert job_name("training", place) == job_name("training", {})
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    assert "7.0" in job_name(None, slurm)
    with pytest.raises(ArgumentError, match="door: nothing in the environment"):
        job_name(None, {"RANK": "1"})


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(3)
    arena.board(0).set_process(os.getpid(), start_ticks(os.getpid()))
    yield arena
    arena.close()


OFFER = Offer(2, (0, 2), (2,), 0, 1 << 20, 1, 5.0)


def test_an_offer(arena: Arena, listener: JoinListener) -> None:
    assert Offer.read(json.loads(json.dumps(OFFER)), arena, come(listener)) == OFFER


def test_an_offer_of_a_process_that_is_no_rank(arena: Arena, listener: JoinListener) -> None:
    arena.board(0).set_process(os.getppid(), start_ticks(os.getppid()))
    with pytest.raises(ArgumentError, match=f"process {os.getpid()}, which listens .*, is no rank"):
        Offer.read(OFFER, arena, come(listener))
