"""What goes wrong in or around a group: everybody hears who did it, and other groups go on."""

from contextlib import nullcontext

import pytest
import torch

import unisono
from tests.support.on_ranks import FAILED, die, in_new_world
from tests.support.waiting import until
from unisono.base.config import Config
from unisono.base.errors import MismatchError, OutOfMemory, PeerFailed, PeerGone, WaitTimeout
from unisono.base.records import DepartureKind
from unisono.calls.groups import _record, destroy_group, new_group, split


@pytest.mark.ranks(4)
def test_differing_member_lists_raise_mismatch() -> None:
    world = unisono.init()
    with pytest.raises(MismatchError, match=r"rank 2  new_group\(\[0, 1\]\), ") as caught:
        new_group([0, 1] if world.rank == 2 else [1, 0, 3])
    calls, same = caught.value.calls, "new_group([0, 1, 3])"
    assert caught.value.odd == (2,)
    assert [str(calls[rank]) for rank in range(4)] == [same, same, "new_group([0, 1])", same]
    assert all(call.where.startswith(f"{__file__}:") for call in calls.values())
    unisono.barrier(new_group())


def test_long_lists_are_compared_to_their_end() -> None:
    """Where the words are longer than what ranks tell each other, the rest counts, too."""
    first, second = (_record("a" * 2000 + end) for end in "bc")
    assert first != second
    assert len(first.words) < 600


@pytest.mark.ranks(3)
def test_split_and_new_group_do_not_mix() -> None:
    with pytest.raises(MismatchError, match=r"new_group\(\[0, 1, 2\]\)"):
        split(0) if unisono.get_rank() == 0 else new_group()
    destroy_group(new_group())


@pytest.mark.ranks(4)
def test_mismatch_in_group_names_both_ranks() -> None:
    group = split(unisono.get_rank() % 2)
    tensor = torch.ones(4)
    if unisono.get_rank() % 2 == 0:
        unisono.all_reduce(tensor, group=group)
        return
    with pytest.raises(MismatchError) as caught:
        unisono.all_reduce(tensor, "max" if group.rank == 1 else "sum", group)
    unisono.all_reduce(tensor, group=group)
    assert tensor[0] == 2
    assert str(caught.value.again()) == str(caught.value)
    assert "  rank 1 (world rank 3)  all_reduce(float32[4], max)" in str(caught.value)
    assert "  rank 0 (world rank 1)  all_reduce(float32[4], sum)" in str(caught.value)


@in_new_world(4, return_exceptions=True, gives=[FAILED, None, None, None])
def test_death_of_a_rank_ends_its_groups_only() -> None:
    """Rank 0 dies; the others are in a group with it, in one without it, and in the world."""
    rank = unisono.get_rank()
    pair, without = new_group([0, 3], name="pair"), new_group([1, 2, 3])
    if rank == 0:
        die()
    if pair:
        cause = (
            r"rank 0 \(world rank 0, pid .*\) was killed by signal 9 \(SIGKILL\) while rank 1 \(world rank 3\) waited"
        )
        with pytest.raises(PeerGone, match=f"{cause} for it .*of group 'pair'"):
            unisono.all_reduce(torch.ones(4), group=pair)
        for call in (unisono.barrier, lambda group: new_group(group=group)):
            with pytest.raises(PeerGone):
                call(group=pair)
    inner = new_group([0, 2], group=without)  # groups can still be made, of those who live
    if inner:
        unisono.barrier(inner)
    for group in (inner, pair, new_group(group=without)):
        destroy_group(group)
    unisono.barrier(without)
    with pytest.raises(PeerGone):
        unisono.barrier()


@pytest.mark.ranks(3)
def test_late_rank_breaks_its_group_only() -> None:
    """It comes when the other one has given up, and withdrawn its signature: it cannot go on with that."""
    pair = new_group([1, 2], name="pair", timeout_s=0.2)
    if pair:
        error, words = (
            (PeerFailed, r"^rank 1 \(world rank 2\) gave up all_reduce\(float32\[4\], sum\) #1 of group 'pair'"),
            (WaitTimeout, r"^rank 1 \(world rank 2\) waited 0\.2.* for rank 0 \(world rank 1\)\."),
        )[pair.rank]
        until(
            lambda: pair.rank == 1 or (pair.engine.arena.board(1).gave_up[0] == 1 and not pair.engine.signature(1, 1))
        )
        with pytest.raises(error, match=words) as caught:
            unisono.all_reduce(torch.ones(4), group=pair)
        assert str(caught.value.again()) == str(caught.value)
    unisono.barrier()


@in_new_world(2)
def test_sub_group_tells_why_a_rank_has_failed() -> None:
    """Rank 1 leaves the sub-group, too, as its program ends."""
    group = new_group()
    if group.rank == 1:
        group.world.tell_departure(DepartureKind.RAISED, "raised SystemExit: 3")
        destroy_group(group)
        return
    until(lambda: group.engine.arena.board(1).gone)
    with pytest.raises(PeerGone, match=r"raised SystemExit: 3 while"):
        unisono.all_reduce(torch.ones(4), group=group)


@in_new_world(3, config=Config(segment_bytes=4096, heap_bytes=1 << 20))
def test_full_heaps_refuse_groups_of_their_ranks() -> None:
    """Ranks 1 and 2 cannot lend memory, so their groups fail on both. Other groups can be made."""
    rank = unisono.get_rank()
    filler = unisono.empty(1000 << 10, dtype=torch.uint8) if rank > 0 else None
    words = r"memory of ranks 1, 2 is too full .* UNISONO_HEAP_BYTES"
    for call in (lambda: new_group([1, 2]), lambda: split(int(rank > 0))) * 20:
        with pytest.raises(OutOfMemory, match=words) if rank else nullcontext():
            destroy_group(call())
    destroy_group(new_group([0, 1]))
    del filler
    for _ in range(20):
        destroy_group(new_group([1, 2]))
