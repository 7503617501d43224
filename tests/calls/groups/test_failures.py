"""What goes wrong in or around a group: everybody hears who did it, and other groups go on."""

import time
from typing import Any

import pytest
import torch

import unisono
from tests.support.faults import DEADLINE_S, FAILED, SOON_S, die
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono.base.config import Config
from unisono.base.errors import MismatchError, OutOfMemory, PeerFailed, PeerGone, WaitTimeout
from unisono.base.records import Departure, DepartureKind
from unisono.calls.groups import _record, destroy_group, new_group, split


@pytest.mark.ranks(4)
def test_differing_member_lists_raise_mismatch() -> None:
    world = unisono.init()
    with pytest.raises(MismatchError) as caught:
        new_group([0, 1] if world.rank == 2 else [1, 0, 3])
    calls, same = caught.value.calls, "new_group([0, 1, 3])"
    assert caught.value.odd == (2,)
    assert [str(calls[rank]) for rank in range(4)] == [same, same, "new_group([0, 1])", same]
    assert all(call.where.startswith(f"{__file__}:") for call in calls.values())
    assert "rank 2  new_group([0, 1]), " in str(caught.value)
    group = new_group([1, 0, 3])
    tensor = torch.full((5,), float(world.rank))
    if group:
        unisono.all_reduce(tensor, group=group)
    unisono.all_reduce(tensor)
    assert tensor[0] == 3 * 4 + 2


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


def survive(victim: int) -> dict[str, Any]:
    """One rank of four dies; the three others are in a group with it, in one without it, and in the world."""
    rank = unisono.get_rank()
    rest = [r for r in range(4) if r != victim]
    pair, without = new_group([victim, rest[-1]], name="pair"), new_group(rest)
    if rank == victim:
        die()
    facts: dict[str, Any] = {}
    if isinstance(pair, unisono.Group):
        start = time.monotonic()
        with pytest.raises(PeerGone) as caught:
            unisono.all_reduce(torch.ones(4), group=pair)
        facts = {"took": time.monotonic() - start, "text": str(caught.value), "world_rank": caught.value.world_rank}
        with pytest.raises(PeerGone):
            unisono.barrier(pair)
        with pytest.raises(PeerGone):
            new_group(group=pair)
    tensor = torch.full((30_000,), float(rank))
    unisono.all_reduce(tensor, group=without)
    inner = new_group([0, 2], group=without)  # groups can still be made, of those who live
    if isinstance(inner, unisono.Group):
        unisono.barrier(inner)
    destroy_group(inner)
    facts["sum"] = tensor[0].item()
    destroy_group(pair)
    destroy_group(new_group(group=without))
    facts["memory is back"] = pair not in without.engine.lender.left and not without.engine.lender.left
    unisono.barrier(without)
    with pytest.raises(PeerGone):
        unisono.barrier()
    return facts


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("victim", [0, 2])
def test_death_of_a_rank_ends_its_groups_only(victim: int) -> None:
    seen: list[Any] = unisono.run(survive, 4, (victim,), timeout_s=DEADLINE_S, return_exceptions=True)
    assert seen.pop(victim) == FAILED
    assert [one["sum"] for one in seen] == [6.0 - victim] * 3
    one = seen[-1]
    assert one["took"] < SOON_S
    assert one["world_rank"] == victim
    # The victim is the first of the pair: its rank there is 0, and that of the survivor 1.
    assert f"rank 0 (world rank {victim}, pid " in one["text"]
    assert ") was killed by signal 9 (SIGKILL) while rank 1 (world rank 3) waited for it" in one["text"]
    assert "of group 'pair'" in one["text"]


@pytest.mark.ranks(3)
def test_late_rank_breaks_its_group_only() -> None:
    rank = unisono.get_rank()
    pair = new_group([1, 2], name="pair", timeout_s=0.2)
    if rank == 2:
        with pytest.raises(
            WaitTimeout, match=r"^rank 1 \(world rank 2\) waited 0\.2.* for rank 0 \(world rank 1\)\."
        ) as caught:
            unisono.all_reduce(torch.ones(4), group=pair)
        assert caught.value.missing == (0,)
        assert str(caught.value.again()) == str(caught.value)
    elif rank == 1:
        # It has given up, and withdrawn its signature: whoever comes later cannot go on with it.
        until(lambda: pair.engine.arena.board(1).gave_up[0] == 1 and not pair.engine.signature(1, 1))
        with pytest.raises(PeerFailed) as failed:
            unisono.all_reduce(torch.ones(4), group=pair)
        said = str(failed.value)
        assert str(failed.value.again()) == said
        assert said.startswith("rank 1 (world rank 2) gave up all_reduce(float32[4], sum) #1 of group 'pair'")
    total = torch.full((4,), float(rank))
    unisono.all_reduce(total)
    assert total[0] == 3.0


@pytest.mark.ranks(2)
def test_leaving_after_a_call_is_no_failure() -> None:
    """Rank 1 makes its call and leaves just while rank 0, which has waited for it, looks whether it is still there."""
    group = new_group()
    tensor, peer, gone = torch.full((4,), float(group.rank + 1)), group.engine.arena.board(1), group.liveness.gone

    def look(rank: int) -> Departure | None:
        until(lambda: bool(peer.gone))
        return gone(rank)

    if group.rank == 1:
        until(lambda: group.engine.arena.board(0).call(1) is not None)  # it has begun to look
        unisono.all_reduce(tensor, group=group)
        destroy_group(group)
    else:
        group.liveness.gone = look
        try:
            unisono.all_reduce(tensor, group=group)
        finally:
            group.liveness.gone = gone
        with pytest.raises(PeerGone, match=r"rank 1 \(world rank 1, pid \d+\) left the group"):
            unisono.all_reduce(tensor, group=group)
    assert tensor[0].item() == 3.0


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
    for call in (lambda: new_group([1, 2]), lambda: split(int(rank > 0))):
        for _ in range(20):
            if rank == 0:
                destroy_group(call())
                continue
            with pytest.raises(OutOfMemory, match=r"memory of ranks 1, 2 is too full .* UNISONO_HEAP_BYTES"):
                call()
    group = new_group([0, 1])
    if isinstance(group, unisono.Group):
        unisono.barrier(group)
    del filler
    for _ in range(20):
        group = new_group([1, 2])
        if isinstance(group, unisono.Group):
            unisono.barrier(group)
        destroy_group(group)
