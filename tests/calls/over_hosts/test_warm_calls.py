"""What a call over hosts that has been made before passes on its way: these files, none of planning among them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest
import torch

import unisono
from unisono.base.config import Config

SOURCE = Path(unisono.__file__).parent
CALLS = 40

FILES = {
    "calls/collectives/all_reduce.py",
    "calls/dispatch/shortcut.py",
    "calls/dispatch/over_hosts/hosts_run.py",
    "calls/dispatch/over_hosts/hosts_steps.py",
    "calls/dispatch/over_hosts/chunks.py",
    "engine/host.py",
    "engine/logs/rank_logs.py",
    "engine/reducers/__init__.py",
    "hosts/carriers/gloo.py",
    "hosts/messages/exchange.py",
    "hosts/messages/persistent_receives.py",
    "hosts/span.py",
    "ranks/group/group.py",
}
WAITING = {
    "base/units.py",
    "engine/clock.py",
    "engine/mailbox/poller.py",
    "engine/memory/arena.py",
    "hosts/carriers/waiter.py",
    "hosts/messages/wait.py",
}
"""Passed by a rank that waits for others, too."""


class Seen:
    """What a call enters: the files, and how many functions, but for those of a wait."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.functions, self._aside = 0, 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event not in ("call", "return") or not path.is_relative_to(SOURCE):
            return
        file = str(path.relative_to(SOURCE))
        aside = file in WAITING
        if event == "call":
            self.files.add(file)
            self.functions += not (aside or self._aside)
        self._aside += aside * (1 if event == "call" else -1)


def walk() -> tuple[list[str], list[int]]:
    """The files of all of some calls, and how many functions each of these enters."""
    tensor, all_reduce = torch.ones(2), unisono.all_reduce
    for _ in range(8):
        all_reduce(tensor)
    calls = [Seen() for _ in range(CALLS)]
    for seen in calls:
        unisono.barrier()
        sys.setprofile(seen)
        all_reduce(tensor)
        sys.setprofile(None)
    return sorted(set().union(*(seen.files for seen in calls))), [seen.functions for seen in calls]


@pytest.mark.parametrize(("shape", "most"), [("2x1", 60), ("2x2", 76)])
def test_a_warm_call_passes_these_files(shape: str, most: int) -> None:
    patient = Config(look_up_s=60.0)  # on a busy machine any rank may wait for long, and would look at the others
    hosts = unisono.schedule.Hosts.parse(shape)
    with unisono.world(hosts.ranks, hosts=shape, config=patient) as world:
        found = world.run(walk)
    passed = set().union(*(paths for paths, _ in found))  # some ranks of a host may have no messages
    assert FILES <= passed <= FILES | WAITING
    assert max(max(counts) for _, counts in found) <= most
