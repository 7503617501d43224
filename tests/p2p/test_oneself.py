"""Messages from a rank to itself."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import torch

import unisono
from unisono import p2p

Worlds = Callable[[int], unisono.World]
NewWorld = Callable[..., unisono.World]


def values(count: int, seed: int) -> torch.Tensor:
    return ((torch.arange(count) * 7 + seed * 131) % 251).float()


def test_to_oneself(worlds: Worlds) -> None:
    def alone() -> None:
        me = unisono.get_rank()
        for count in (0, 3, 1_000_000):
            p2p.send(values(count, me), me, tag=3)
            assert torch.equal(p2p.recv(None, me, tag=3), values(count, me))
            late = p2p.irecv(torch.empty(count), tag=4)
            p2p.isend(values(count, me), me, tag=4).wait()
            assert late.source_rank() == me
            assert torch.equal(late.result(), values(count, me))

    worlds(2).run(alone)


def test_to_oneself_when_all_others_have_returned(worlds: Worlds, new_world: NewWorld) -> None:
    def alone() -> None:
        me, group = unisono.get_rank(), unisono.init()
        if me == 1:
            return
        looked = []
        engine = import_module("unisono.p2p.progress_engine")
        engine._CHECK_PEERS_S = 0.0
        check = engine.ProgressEngine.check_peers
        engine.ProgressEngine.check_peers = lambda *a, **b: (looked.append(group.presence.gone(1)), check(*a, **b))[1]
        late = p2p.irecv(torch.empty(3), tag=4)
        while looked.count(None) == len(looked):
            assert not late.is_completed()
        p2p.send(values(3, me), me, tag=4)
        assert torch.equal(late.result(), values(3, me))

    with new_world(2, timeout_s=60) as world:
        world.run(alone)
