"""Messages within sub-groups: ranks are those of the group, and groups do not hear each other."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable

import pytest
import torch

import unisono
from unisono import PeerGone, WaitTimeout, p2p
from unisono.calls.groups import destroy_group, new_group

Worlds = Callable[[int], unisono.World]


def test_a_message_stays_in_its_group(worlds: Worlds) -> None:
    def apart() -> None:
        me = unisono.get_rank()
        groups = [unisono.init(), new_group([4, 1, 3]), new_group([3, 4])]
        mine = [group for group in groups if group]
        for group in mine:  # all are sent before any is received, with the same tag
            p2p.send(torch.tensor([groups.index(group), me]), (group.rank + 1) % group.size, group)
        for group in reversed(mine):
            left = (group.rank - 1) % group.size
            got = p2p.recv(None, left, group)
            assert got.tolist() == [groups.index(group), group.world_ranks[left]]

    worlds(5).run(apart)


def test_errors_name_the_ranks_of_the_world_beside(worlds: Worlds) -> None:
    def errors() -> None:
        group = new_group([1, 2])
        if not group:
            return
        other = 1 - group.rank
        with pytest.raises(WaitTimeout, match=r"for rank \d \(world rank \d\)") as late:
            p2p.recv(None, other, group, tag=9, timeout_s=0.01)
        assert [late.value.world_ranks[rank] for rank in late.value.missing] == [other + 1]
        p2p.send(torch.zeros(3), other, group)
        names = rf"rank {other} \(world rank {other + 1}\) sent float32\[3\]"
        with pytest.raises(unisono.MismatchError, match=names) as wrong:
            p2p.recv(torch.zeros(2), other, group)
        assert wrong.value.again().world_ranks == (1, 2)
        assert str(wrong.value.again()) == str(wrong.value)
        if group.rank == 0:
            p2p.send(torch.full((70_000,), 5.0), 1, group)
            destroy_group(group)
            return
        assert p2p.recv(None, 0, group).sum() == 350_000, "sent before its sender left"
        with pytest.raises(PeerGone, match=r"rank 0 \(world rank 1, pid \d+\) left the group"):
            p2p.recv(None, 0, group)

    worlds(3).run(errors)


def test_a_dropped_group_goes_without_the_garbage_collector(worlds: Worlds) -> None:
    def drop() -> None:
        gc.disable()
        for count in (1, 300_000):
            group = new_group([0, 1])
            other = 1 - group.rank
            work = p2p.irecv(None, other, group)
            p2p.send(torch.ones(count), other, group)
            work.wait()
            dropped = weakref.ref(group)
            del group
            end = time.monotonic() + 20
            while dropped() is not None:  # the thread may hold it for one more look
                assert time.monotonic() < end
            assert work.result().sum() == count
            assert work.source_rank() == other
        gc.enable()

    worlds(2).run(drop)
