"""A group grows while processes die at moments drawn by lot: newcomers that join, members that let them in."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import torch

import unisono
from tests.support.newcomers import newcomer, tell, told

RANKS, DEADLINE_S = 3, 60.0
_MOST_DELAY_S = 0.06


def _die_after(delay_s: float) -> None:
    def die() -> None:
        time.sleep(delay_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die, daemon=True).start()


def _total(group: unisono.Group) -> tuple[list[int], float]:
    """The sum over all members that are left at last, and these."""
    while True:
        mine = torch.full((5000,), 4.0 ** group.world_ranks[group.rank])
        try:
            unisono.all_reduce(mine, group=group)
            unisono.barrier(group)
        except unisono.PeerError:
            group = group.shrink()
        else:
            return list(group.world_ranks), mine[-1].item()


def _comes(folder: Path, name: str, delay_s: float | None) -> None:
    def join() -> None:
        if delay_s is not None:
            _die_after(delay_s)
        try:
            group = unisono.join(timeout_s=DEADLINE_S / 2)
        except unisono.UnisonoError as error:
            tell(folder, name, error=repr(error))
            return
        tell(folder, name, left=_total(group))

    newcomer(join)


def _member(folder: Path, newcomer_dies_s: float | None, member_dies_s: float | None) -> tuple[list[int], float]:
    group = unisono.init()
    unisono.barrier()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        unisono.barrier()
    except unisono.PeerGone:
        group = group.shrink()
    if group.rank == 0:
        _comes(folder, "first", newcomer_dies_s)
        _comes(folder, "second", None)
    elif member_dies_s is not None:
        _die_after(member_dies_s)
    while True:
        try:
            group = unisono.grow(group, size=RANKS, timeout_s=DEADLINE_S / 2)
            return _total(group)
        except unisono.PeerError:
            group = group.shrink()


def grows(rng: random.Random, folder: Path) -> list[str]:
    """Let a group of three grow again after a death, and somebody die meanwhile; what is wrong with the outcome."""
    newcomer_dies_s = rng.random() * _MOST_DELAY_S if rng.random() < 0.7 else None
    member_dies_s = rng.random() * _MOST_DELAY_S if newcomer_dies_s is None or rng.random() < 0.4 else None
    scene = f"_member({newcomer_dies_s}, {member_dies_s})"
    ends = unisono.run(
        _member, RANKS, (folder, newcomer_dies_s, member_dies_s), timeout_s=DEADLINE_S, return_exceptions=True
    )
    wrong = [f"{scene}: rank 0 {ends[0]}"] if isinstance(ends[0], unisono.RankFailed) else []
    if member_dies_s is None and isinstance(ends[2], unisono.RankFailed):
        wrong.append(f"{scene}: rank 2 {ends[2]}")
    outcomes = {rank: end for rank, end in enumerate(ends) if not isinstance(end, unisono.RankFailed)}
    outcomes |= {name: tuple(facts["left"]) for name, facts in told(folder).items() if "left" in facts}  # type: ignore[misc]
    for who, (members, total) in outcomes.items():
        if total != sum(4.0**rank for rank in members):
            wrong.append(f"{scene}: {who} got {total} from {members}")
    if 0 in outcomes and not {2} - set(outcomes) and len({repr(outcomes[rank]) for rank in (0, 2)}) > 1:
        wrong.append(f"{scene}: the members do not agree: {outcomes}")
    return wrong
