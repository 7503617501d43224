"""A group that has lost ranks gets new ones: the same sums as before, whoever had died, again and again."""

import gc
import os
from pathlib import Path

import pytest
import torch

import unisono
from tests.support.faults import FAILED, die
from tests.support.newcomers import catch_up
from tests.support.on_ranks import in_new_world
from tests.support.ports import free_port
from tests.support.programs import Python, place

DEADLINE_S = 100.0


def lose(group: unisono.Group, *victims: int) -> unisono.Group:
    """These ranks of the group die, and the others go on without them."""
    unisono.barrier(group)
    if group.rank in victims:
        die()
    while True:
        try:
            unisono.barrier(group)
        except unisono.PeerGone:
            smaller = group.shrink()
            if smaller.size == group.size - len(victims):
                return smaller
            group, victims = smaller, victims[1:]


def open_files(group: unisono.Group) -> int:
    return len(os.listdir("/proc/self/fd")) - len(group.world.liveness._pidfds)


def again_and_again(victims: list[int]) -> list[tuple[int, ...]]:
    group = unisono.init()
    seen: list[tuple[int, ...]] = []
    done = catch_up(group) if group.newcomers else 0
    assert isinstance(done, int)
    for k in range(done, len(victims)):
        for count in (3, 50_000):
            mine = torch.full((count,), 4.0**group.rank * (k + 1))
            unisono.all_reduce(mine)
            assert mine.unique().tolist() == [21.0 * (k + 1)]
        smaller = lose(group, victims[k])
        assert smaller.size == 2
        group = unisono.grow(size=3)
        assert group.world_ranks == (0, 1, 2)
        assert group.newcomers == (victims[k],)
        assert unisono.init() is group
        assert catch_up(group, k + 1) == k + 1
        del smaller
        gc.collect()
        world = group.world
        seen.append((k, open_files(group), len(world.all_of_it), len(world.host.lender.left)))
    return seen


def test_whoever_dies_is_replaced() -> None:
    victims = [2, 0, 1, 0]
    seen = unisono.run(again_and_again, 3, [victims], timeout_s=DEADLINE_S, restarts=len(victims))
    assert [[one[0] for one in rank] for rank in seen] == [[], [3], [1, 2, 3]]


@pytest.mark.long
def test_nothing_is_left_after_twenty_rounds() -> None:
    victims = [1, 2] * 10
    seen = unisono.run(again_and_again, 3, [victims], timeout_s=DEADLINE_S, restarts=len(victims))[0]
    assert len(seen) == 20
    assert len({one[1:3] for one in seen[2:]}) == 1, "descriptors and groups"
    assert max(one[3] for one in seen) <= 3, "regions that nobody has taken back yet"


@in_new_world(4, restarts=2, gives=[2.0, 4.0, 2.0, 4.0])
def test_two_at_once_and_all_kinds_of_calls() -> object:
    group = unisono.init()
    if not group.newcomers:
        unisono.all_reduce(torch.ones(3))
        lent_by_a_victim, of_the_living = unisono.new_group([1, 3]), unisono.new_group([0, 3])
        smaller = lose(group, 1, 2)
        group = unisono.grow(size=4)
        assert smaller.broken is not None
        with pytest.raises(unisono.PeerFailed, match="went on in group 'ranks 0, 1, 2, 3'"):
            unisono.barrier(smaller)
        if group.rank == 3:
            with pytest.raises(unisono.PeerFailed, match="other processes have the places of ranks 1, 2"):
                unisono.barrier(lent_by_a_victim)
            with pytest.raises(unisono.PeerFailed, match="other processes"):
                lent_by_a_victim.shrink()
        with pytest.raises(unisono.PeerFailed, match="other processes"):
            group.world.shrink()
        if of_the_living:
            mine = torch.tensor([1.0 + group.rank])
            unisono.all_reduce(mine, group=of_the_living)
            assert mine.item() == 5.0
        del lent_by_a_victim, of_the_living, smaller
        gc.collect()
    assert group.newcomers == (1, 2)
    mapped = unisono.empty(50_000).fill_(10.0**group.rank)
    private = torch.full((1 << 19,), 10.0**group.rank)
    unisono.all_reduce(private)
    assert private.unique().tolist() == [1111.0]
    kept = unisono.empty(1 << 20).fill_(group.rank)
    unisono.all_reduce(mapped)
    assert mapped.unique().tolist() == [1111.0]
    ring = torch.tensor([float(group.rank)])
    to, source = (group.rank + 1) % 4, (group.rank - 1) % 4
    got = torch.zeros(1)
    unisono.sendrecv(ring, to, got, source)
    assert got.item() == source
    pair = unisono.split(color=group.rank % 2)
    unisono.all_reduce(ring, group=pair)
    unisono.barrier()
    assert (kept == group.rank).all()
    return ring.item()


@in_new_world(3, return_exceptions=True, gives=[[3.0], FAILED, [3.0]])
def test_no_process_asks() -> list[float]:
    whole = unisono.init()
    assert unisono.grow() is whole
    group = lose(whole, 1)
    assert unisono.grow() is group
    assert unisono.grow(size=3, timeout_s=0.3) is group
    mine = torch.tensor([2.0**group.rank])
    unisono.all_reduce(mine)
    return mine.tolist()


@in_new_world(3)
def test_calls_that_differ_are_told() -> None:
    call = unisono.barrier if unisono.get_rank() == 1 else unisono.grow
    with pytest.raises(unisono.MismatchError, match="rank 1 differs from the rest") as caught:
        call()
    assert str(caught.value).count("test_grow.py") == 3


SCRIPT = """
import os, signal, sys, torch, unisono
group = unisono.join(timeout_s=100) if "again" in sys.argv else unisono.init()
if not group.newcomers:
    unisono.barrier()
    if group.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        unisono.barrier()
    except unisono.PeerGone:
        group.shrink()
    group = unisono.grow(size=3, timeout_s=100)
mine = torch.tensor([2.0 ** group.rank])
unisono.all_reduce(mine)
print(group.rank, group.newcomers, mine.item())
"""


@pytest.mark.long
def test_a_job_of_a_launcher_whose_rank_0_has_died(python: Python, tmp_path: Path) -> None:
    """Its store has gone with it; the job's name is in the environment."""
    script, port = tmp_path / "train.py", free_port()
    script.write_text(SCRIPT)
    ranks = [python(script, *words, **place(rank, 3, port)) for rank, *words in ((0,), (1,), (2,), (0, "again"))]
    said = [rank.communicate(timeout=110)[0].strip() for rank in ranks]
    assert said == ["", "1 (0,) 7.0", "2 (0,) 7.0", "0 (0,) 7.0"]
