"""Faults of ranks, hosts and links while long messages are under way: with each carrier, ranks say the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks.host_faults.__main__ import trial

import unisono
from tests.support.cluster import Cluster
from tests.support.waiting import until

Clusters = Callable[[str], Cluster]

SOON_S = 10.0
"""A host is lost after 2 s, a rank late after 4 s. No engine's own time-out is as short."""


@pytest.mark.parametrize(
    ("shape", "fault", "place"),
    [
        ("3x1", "stop", "long call"),
        ("3x1", "stop host", "messages"),
        ("3x1", "cut link", "messages"),
        ("2x2", "cut link", "gate"),
        ("2+1", "cut link", "long call"),
        ("3x1", "cut pair", "long call"),
        ("3x1", "kill", "long call"),
        ("3x1", "kill sentinel", "gate"),
    ],
)
def test_all_name_the_culprit_and_go_on(cluster: Clusters, carrier: str, shape: str, fault: str, place: str) -> None:
    """Of two hosts the first one goes on, so it is the second that is cut off."""
    one = trial(cluster(shape), fault, place, int(shape != "3x1"))
    assert not one.left_behind
    left = [rank for rank in one.said if rank not in one.victims]
    for rank, end in one.said.items():
        if rank in one.victims:
            assert end.after == ("" if fault == "kill" else "LeftOut"), end
        else:
            assert end.error == ("WaitTimeout" if fault == "stop" else "PeerGone"), end
            assert end.named == [*one.victims], end
            assert end.after_s is not None
            assert end.after_s < SOON_S
            assert (end.after, end.left) == ("right", left), end


@pytest.mark.parametrize("place", ["long call", "messages"])
def test_a_link_that_is_gone_for_a_second_delays_calls_only(cluster: Clusters, carrier: str, place: str) -> None:
    one = trial(cluster("3x1"), "gone 1 s", place, 0)
    assert not one.left_behind
    assert [(end.error, end.after) for end in one.said.values()] == [("", "same group")] * 3


@pytest.mark.parametrize("how", ["cable", "link"])
def test_packets_that_are_lost_are_sent_again(cluster: Clusters, carrier: str, tmp_path: Path, how: str) -> None:
    """A cable has a loose contact; or the link itself goes down and up, so that nothing can be sent."""
    some, over, rng = cluster("2+1"), threading.Event(), random.Random(5)
    break_it, mend_it = (some.cut, some.mend) if how == "cable" else (some.link_down, some.link_up)

    def work() -> str:
        group = unisono.init()
        me, beside = group.rank, (group.rank + 1) % 3
        (tmp_path / "ready").touch()
        for turn in range(20):
            for items in (2, 3_000, 300_000):
                tensor = torch.full((items,), 10.0**me)
                unisono.all_reduce(tensor)
                assert bool((tensor == 111.0).all())
                sent = unisono.isend(torch.full((items,), turn), beside)
                assert bool((unisono.recv(src=(me + 2) % 3) == turn).all())
                sent.wait()
        return group.span.carrier.name

    def shake() -> None:
        until((tmp_path / "ready").exists)
        while not over.wait(rng.uniform(0.05, 0.3)):
            break_it(1)
            over.wait(rng.uniform(0.01, 0.05))
            mend_it(1)

    shaking = threading.Thread(target=shake)
    shaking.start()
    try:
        assert some.run(work) == [carrier] * 3
    finally:
        over.set()
        shaking.join()
