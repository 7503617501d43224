"""What point-to-point calls leave behind: in closed groups, sub-groups and forked children, and when forgotten."""

import os
import threading

import pytest
import torch

import unisono
from tests.support.on_ranks import DEADLINE_S
from tests.support.programs import run_python
from tests.support.waiting import until
from unisono import PeerGone, WaitTimeout
from unisono.calls import p2p
from unisono.calls.groups import destroy_group, new_group
from unisono.calls.p2p.progress_engine import progress_engine


@pytest.mark.parametrize(
    ("how", "error", "words"), [("close", unisono.NotInitialized, "closed"), ("abort", unisono.PeerFailed, "abort")]
)
@pytest.mark.ranks(2, hosts="2x1")
def test_ended_group_says_so(how: str, error: type[Exception], words: str) -> None:
    """Also to messages that could take the short way."""
    group, other = new_group(), 1 - unisono.get_rank()
    for _ in range(2):
        p2p.sendrecv(torch.zeros(4), other, torch.zeros(4), other, group)
    work = p2p.irecv(None, None, group)  # from any: that the other has left first does not end it
    unisono.barrier()
    getattr(group, how)()
    until(lambda: isinstance(work.exception(), error))
    tensor = torch.zeros(2)
    calls = (lambda: p2p.send(tensor, other, group), lambda: p2p.recv(None, other, group))
    for call in (*calls, lambda: p2p.recv(tensor, other, group), work.wait):
        with pytest.raises(error, match=words):
            call()
    unisono.barrier()


FORGETFUL = """
import warnings, torch, unisono
from unisono.calls import p2p
warnings.simplefilter("error")
def forget():
    me = unisono.get_rank()
    kept = [p2p.irecv(None, 1 - me, tag=4), p2p.irecv(None, tag=5), p2p.isend(torch.zeros(1_000_000), 1 - me, tag=6)]
    p2p.irecv(torch.zeros(3), 1 - me, tag=7)
    unisono.barrier()
    unisono.all_reduce(torch.ones(300_000), async_op=True)
with unisono.World(2, timeout_s=30) as world:
    world.run(forget)
    world.run(forget)
unisono.init()
p2p.irecv(None, 0)
print("end", flush=True)
"""


def test_forgotten_messages_delay_no_exit() -> None:
    done = run_python("-c", FORGETFUL, check=True)
    assert (done.stdout, done.stderr) == ("end\n", "")


@pytest.mark.ranks(2, hosts="2x1")
def test_forked_child_leaves_messages_alone() -> None:
    other = 1 - unisono.get_rank()
    work = p2p.irecv(None, other, tag=1)
    unisono.barrier()
    engine, held, forked = progress_engine(unisono.init()), threading.Event(), threading.Event()

    def move() -> None:
        with engine.mailbox.lock:
            held.set()
            forked.wait(DEADLINE_S)

    thread = threading.Thread(target=move)
    thread.start()
    held.wait(DEADLINE_S)
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (work.wait, lambda: p2p.recv(None, other), lambda: p2p.send(torch.zeros(1), other)):
            try:
                call()
            except unisono.NotInitialized:
                refused += 1
        os._exit(refused)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    unisono.barrier()  # nothing is sent before both have forked
    p2p.send(torch.full((2,), float(other)), other, tag=1)
    assert work.result().tolist() == [1.0 - other] * 2


@pytest.mark.ranks(3, hosts="2+1")
def test_errors_name_world_ranks_as_well() -> None:
    group = new_group([1, 2])
    if not group:
        return
    other = 1 - group.rank
    with pytest.raises(WaitTimeout, match=r"for rank \d \(world rank \d\)") as late:
        p2p.recv(None, other, group, tag=9, timeout_s=0.01)
    assert [late.value.world_ranks[rank] for rank in late.value.missing] == [other + 1]
    p2p.send(torch.zeros(3), other, group)
    names = rf"rank {other} \(world rank {other + 1}\) sent float32\[3\]"
    with pytest.raises(unisono.MismatchError, match=names):
        p2p.recv(torch.zeros(2), other, group)
    if group.rank == 0:
        p2p.send(torch.full((70_000,), 5.0), 1, group)
        destroy_group(group)
        return
    assert p2p.recv(None, 0, group).sum() == 350_000, "sent before its sender left"
    with pytest.raises(PeerGone, match=r"rank 0 \(world rank 1, pid \d+\) left the group"):
        p2p.recv(None, 0, group)
