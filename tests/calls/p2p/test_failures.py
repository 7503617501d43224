"""Point-to-point calls that cannot end well: a dead, late or departed peer, and Ctrl-C."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock

import pytest
import torch

import unisono
from tests.support.on_ranks import die, in_new_world
from tests.support.waiting import once_waiting, until
from unisono import PeerFailed, PeerGone, WaitTimeout
from unisono.calls import p2p
from unisono.calls.p2p.progress_engine import progress_engine
from unisono.engine.mailbox.poller import Poller
from unisono.errors import MessageMismatch
from unisono.hosts.carriers.ucx import UcxCarrier

LONG = 5_000_000  # more than is under way between hosts

POLLS = {Poller.wait.__code__, UcxCarrier.wait.__code__}

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "recv": lambda long: p2p.recv(torch.zeros(4), 1, tag=1),
    "recv from any": lambda long: p2p.recv(torch.zeros(4), tag=1),
    "irecv": lambda long: p2p.irecv(None, 1, tag=1),
    "send": lambda long: p2p.send(long, 1, tag=1),
    "isend": lambda long: p2p.isend(long, 1, tag=1),
    "sendrecv": lambda long: p2p.sendrecv(long[:4], 1, torch.zeros(4), 1, tag=1),
    "sendrecv long": lambda long: p2p.sendrecv(long, 1, torch.zeros(4), 1, tag=1),
}
"""Calls of rank 0 that wait for rank 1. What they send is this, or its beginning."""


@pytest.mark.sampled(most=3)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("hosts", ["1x3", "2+1:round_robin"])
@in_new_world(hosts="hosts")
def test_peer_that_gave_up_ends_waits(tmp_path: Path, name: str, hosts: str) -> None:
    """Rank 1 runs out of time in a collective, and lives on. What it has sent is received; ranks 0 and 2 go on."""
    me, waits, done = unisono.get_rank(), tmp_path / "waits", tmp_path / "done"
    if me == 1:
        p2p.send(torch.full((3,), 1.5), 0, tag=9)
        until(waits.exists)
        with pytest.raises(WaitTimeout):
            unisono.barrier(timeout_s=0.01)
        with pytest.raises(WaitTimeout):  # that of the barrier, told again
            p2p.send(torch.zeros(1), 0)
        until(done.exists)
        return
    if me == 0:
        once_waiting(waits.touch, POLLS)
        words = (
            rf"^rank 0 waited in {name.partition(' ')[0]}\(.*, but rank 1 gave up group 'world': WaitTimeout: rank 1 "
        )
        with pytest.raises(PeerFailed, match=words) as caught:
            CALLS[name](torch.zeros(LONG)).wait()
        assert (caught.value.rank, caught.value.waiting) == (1, 0)
        assert p2p.recv(None, 1, tag=9).tolist() == [1.5] * 3
        with pytest.raises(PeerFailed):
            p2p.recv(None, 1, tag=9)
    tensor = torch.empty(LONG)
    p2p.sendrecv(torch.full((LONG,), float(me)), 2 - me, tensor, 2 - me, tag=4)
    assert (tensor == 2 - me).all()
    done.touch()


@pytest.mark.parametrize("dies", [False, True], ids=["returned", "killed"])
@pytest.mark.parametrize("hosts", ["1x2", "1+1"])
@in_new_world(hosts="hosts", return_exceptions="dies", gives=[[0.0, 1.0, 2.0], ANY])
def test_what_was_sent_before_the_end_is_received(tmp_path: Path, dies: bool, hosts: str) -> list[float]:
    """If it is killed, only what had reached the receiver's host by then."""
    heard, waits = tmp_path / "heard", dies and hosts == "1+1"
    if unisono.get_rank() == 1:
        for k in range(3):
            p2p.send(torch.full((5000,), float(k)), 0)
        p2p.send(torch.zeros(1), 0, tag=8)
        until(lambda: heard.exists() or not waits)
        if dies:
            die()
        return []
    if waits:
        early, mailbox = p2p.irecv(None, 1, tag=9), progress_engine(unisono.init()).mailbox
        until(lambda: early.is_completed() or 8 in mailbox.unexpected_tags(1))  # the last one
        heard.touch()
    until(lambda: bool(unisono.init().engine.arena.board(1).gone))
    got = [p2p.recv(None, source)[-1].item() for source in (1, None, 1)]
    for source in (1, None):
        with pytest.raises(PeerGone, match="rank 1"):
            p2p.recv(None, source)
    return got


@pytest.mark.ranks(3, hosts="2+1")
def test_receive_from_any_waits_for_the_last_rank() -> None:
    """Ranks that have returned have sent what they had to send."""
    me = unisono.get_rank()
    if me == 0:
        once_waiting(lambda: p2p.send(torch.zeros(1), 2), POLLS)
        assert p2p.recv(torch.zeros(3)) == 2
        with pytest.raises(PeerGone, match="returned from the function"):
            p2p.recv()
    if me == 2:
        until(lambda: bool(unisono.init().engine.arena.board(1).gone))
        p2p.recv(None, 0)
        p2p.send(torch.ones(3), 0)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("end", [WaitTimeout, KeyboardInterrupt])
@pytest.mark.ranks(2, hosts="2x1")
def test_ended_wait_leaves_nothing(name: str, end: type[BaseException]) -> None:
    """It has taken too long, or Ctrl-C has ended it. The group goes on, and so do a send that has begun, and a Work
    unless Ctrl-C has ended the wait for it.
    """
    me, group, work, long = unisono.get_rank(), unisono.init(), None, torch.arange(float(LONG))
    unisono.barrier()
    if me == 0:
        usual, group.timeout_s = group.timeout_s, 0.1 if end is WaitTimeout else group.timeout_s
        if end is KeyboardInterrupt:
            once_waiting(lambda: os.kill(os.getpid(), signal.SIGINT), POLLS)
        with pytest.raises(end) as caught:
            (work := CALLS[name](long)).wait()
        group.timeout_s = usual
        if isinstance(caught.value, WaitTimeout):
            assert (caught.value.missing, caught.value.waiting) == ((1,), 0)
            text = str(caught.value)
            assert all(word in text for word in (f" in {name.split(maxsplit=1)[0]}(", "tag=1", __file__)), text
        elif work:
            with pytest.raises(PeerFailed, match=rf"rank 0 gave up {name}.*: interrupted by KeyboardInterrupt"):
                work.wait()
        if not (work and end is WaitTimeout):
            long.zero_()
    unisono.barrier()  # which moves no messages
    go_on(name, work if end is WaitTimeout else None)


def go_on(name: str, work: Any) -> None:
    """Receive what rank 0 has sent, and see that a receive which has ended takes no later message."""
    me, word = unisono.get_rank(), torch.zeros(4)
    if me == 1 and "send" in name:
        count = 4 if name == "sendrecv" else LONG
        assert torch.equal(p2p.recv(None, 0, tag=1), torch.arange(float(count)))
    unisono.barrier()  # neither does this: the thread of rank 0 has to
    if me == 1 and "recv" in name:
        p2p.send(word + 7, 0, tag=1)
    if me == 0 and "recv" in name:
        assert (work.result() if work else p2p.recv(None, 1, tag=1)).tolist() == [7.0] * 4
    if work:
        work.wait()
    p2p.sendrecv(torch.full((4,), me + 5.0), 1 - me, word, 1 - me, tag=2)
    assert word.tolist() == [6.0 - me] * 4


@pytest.mark.ranks(3, hosts="2+1")
def test_timeout_tells_what_was_sent_instead() -> None:
    if unisono.get_rank() == 1:
        p2p.send(torch.ones(2), 0, tag=8)
    unisono.barrier()
    if unisono.get_rank() == 0:
        with pytest.raises(TimeoutError, match=r"for rank 1\. Rank 1 has sent tag 8\."):
            p2p.recv(None, 1, timeout_s=0.05)
        with pytest.raises(WaitTimeout, match=r"recv\(None, src=None, tag=0\) .* for ranks 1, 2\. Rank 1 has sent"):
            p2p.recv(timeout_s=0.05)
        assert p2p.recv(None, 1, tag=8).tolist() == [1.0, 1.0]
    unisono.barrier()


@pytest.mark.ranks(2, hosts="1+1")
def test_wait_has_a_timeout_of_its_own() -> None:
    """The call goes on."""
    me = unisono.get_rank()
    work = p2p.irecv(None, 1 - me, timeout_s=100)
    with pytest.raises(WaitTimeout):
        work.wait(0.05)
    unisono.barrier()
    p2p.send(torch.full((3,), me + 1.0), 1 - me)
    assert work.result().tolist() == [2.0 - me] * 3


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
@pytest.mark.parametrize("hosts", ["1x2", "1+1"])
@in_new_world(hosts="hosts")
def test_refused_long_message_lets_its_sender_end(dtype: torch.dtype, hosts: str) -> None:
    """Of another dtype, or longer: the receiver, which goes on to a collective, and the sender, both go on."""
    me, total = unisono.get_rank(), torch.ones(2)
    for sender in (0, 1):
        if me == sender:
            p2p.send(torch.zeros(LONG), 1 - me)
        else:
            with pytest.raises(MessageMismatch, match=rf"rank {sender} sent float32\[{LONG}\]"):
                p2p.recv(torch.zeros(LONG - (dtype is torch.float32), dtype=dtype), sender)
        unisono.all_reduce(total)
    assert total.tolist() == [4.0, 4.0]


@pytest.mark.parametrize("hosts", ["1x2", "1+1"])
@in_new_world(hosts="hosts")
def test_interrupted_step_ends_the_group(tmp_path: Path, hosts: str) -> None:
    """Who knows what of a message has been moved: every later call says so."""
    me, group = unisono.get_rank(), unisono.init()
    p2p.send(torch.zeros(1), me)
    work = p2p.irecv(None, 1 - me)
    progress_engine(group).mailbox.submit = Mock(side_effect=KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        p2p.recv(None, me)
    for call in (lambda: p2p.recv(None, me), work.wait, lambda: unisono.all_reduce(torch.zeros(2))):
        with pytest.raises(PeerFailed, match=f"rank {me} .*: stopped moving messages .KeyboardInterrupt"):
            call()
    assert group.engine.arena.board(me).gave_up.reason == "stopped moving messages (KeyboardInterrupt)"
    until(work.is_completed)  # the thread has told it
    assert isinstance(work.exception(), PeerFailed)
    (tmp_path / f"{me}").touch()
    until((tmp_path / f"{1 - me}").exists)  # the end of a rank would be the other's error
