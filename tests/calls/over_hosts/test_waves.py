"""Long vectors over hosts, which go in several pieces."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product

import pytest
import torch

import unisono
from tests.support.matrix import FORMS, Case, ops
from tests.support.matrix_driver import check, forget
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono.base.config import Config
from unisono.ranks.failures import attend
from unisono.schedule import Hosts
from unisono.schedule.choose.over_hosts import choose_spanning

N = 300_007


def test_long_vectors_go_in_pieces() -> None:
    for name in ("all_reduce", "broadcast", "all_gather", "all_to_all"):
        assert choose_spanning(name, 8 * N, Hosts.parse("2x2")).pieces == 4
        assert choose_spanning(name, 8000, Hosts.parse("2x2")).pieces == 1


@pytest.mark.ranks(hosts=["2x1", "3+1"])
def test_every_call() -> None:
    for form in FORMS:
        named = ("sum", "avg", "max") if form == "all_reduce" else ops(form, "float64")[:1]
        for op, root in product(named, (0, 3)):
            check(Case(form, "float64", op, N, root=root, seed=root, exact=True))
    forget()


@pytest.mark.ranks(hosts=["2x1", "3+1"])
def test_nobody_writes_a_tensor_after_the_error() -> None:
    """What other ranks of a call have sent, and still send, goes to memory of our own."""
    me, last, group = unisono.get_rank(), unisono.get_world_size() - 1, unisono.new_group()
    tensor = torch.full((N,), float(me))
    if me != last:
        with pytest.raises(unisono.WaitTimeout):
            unisono.all_reduce(tensor, group=group, timeout_s=0.5)
        tensor.fill_(-1.0)
    unisono.barrier()
    if me == last:
        with suppress(unisono.PeerError):  # the others had sent all of it
            unisono.all_reduce(tensor, group=group, timeout_s=20)
    unisono.barrier()
    assert me == last or tensor.eq(-1.0).all()


COUNT = 1 << 18
STAGED_IN_ONE = {"cross_memory_bytes": 0, "inline_bytes": 1 << 22, "segment_bytes": 1 << 23}
"""Private vectors of COUNT elements are staged, their signatures beside them; those in shared memory are elsewhere."""


@pytest.mark.sampled
@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize(
    "config", [Config.from_env(), Config.from_env().replace(**STAGED_IN_ONE)], ids=["usual", "staged in one"]
)
@in_new_world(4, hosts="3+1", config="config")
def test_shared_tensors_on_one_rank_of_a_host(config: Config, odd: int) -> None:
    """Ranks 0 to 2 are on one host, where rank 0 hands the sum to the others, who can read it on some ranks only."""
    group = unisono.init()
    for turn in range(20):
        tensor = group.empty(COUNT) if group.rank == odd else torch.empty(COUNT)
        unisono.all_reduce(tensor.copy_((torch.arange(COUNT) * (group.rank + 3) % 251).float() + turn))
        assert torch.equal(tensor, sum((torch.arange(COUNT) * (rank + 3) % 251).float() + turn for rank in range(4)))


@in_new_world(4, hosts="2x2")
def test_rank_raises_when_no_neighbour_needs_it() -> None:
    """Ranks 0 and 1 are in a call when the other host makes another one. Rank 1 is held up there."""
    group = unisono.init()
    me = group.rank
    unisono.all_reduce(torch.ones(3))
    pid, number = group.engine.arena.board(1).pid, group.engine.call_number

    def hold_up() -> None:
        until(lambda: group.engine.entered(1) >= number)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.7)
        os.kill(pid, signal.SIGCONT)

    with ThreadPoolExecutor(1) as pool:
        if me == 0:
            pool.submit(hold_up)
        attend._COLLECT_S = 0.1  # rank 1 does not tell its call
        with pytest.raises(unisono.MismatchError) as raised:
            unisono.all_reduce(torch.ones(1 << 23 if me < 2 else 5))
    assert "float32[8388608]" in str(raised.value)
    assert "float32[5]" in str(raised.value)
    tensor = torch.full((3,), 10.0**me)
    unisono.all_reduce(tensor)
    assert tensor[1].item() == 1111.0
