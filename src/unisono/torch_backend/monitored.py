"""A barrier that says who did not come, and leaves the group as it was."""

from __future__ import annotations

import time
from contextlib import suppress

import torch

from ..errors import PeerGone, WaitTimeout
from ..membership.group import Group
from ..p2p import recv, send

__all__ = ["monitored_barrier"]

_TAGS = 1 << 62
"""Tags from here on are the barriers', one each."""
_GRACE_S = 2.0
"""How much longer than rank 0 the others wait for its verdict."""


def monitored_barrier(group: Group, number: int, timeout_s: float, wait_all_ranks: bool) -> None:
    """Return when all ranks have come. Raises WaitTimeout on every rank that did, where some have not in timeout_s.

    number: how many such barriers this rank has made before. wait_all_ranks: name all the ranks that are missing; else
    the first. All goes through messages to rank 0 and back, so the group can be used afterwards.
    """
    call, tag, began = "monitored_barrier()", _TAGS + number, time.monotonic()
    absent = torch.zeros(group.size, dtype=torch.int64, device="cpu")
    if group.rank:
        send(absent[:1], 0, group, tag, timeout_s=timeout_s)
        try:
            recv(absent, 0, group, tag, timeout_s=timeout_s + _GRACE_S)
        except (PeerGone, WaitTimeout) as error:
            raise WaitTimeout(call, time.monotonic() - began, (0,), group.rank, f" {error}") from error
    else:
        why = ""
        for rank in range(1, group.size):
            left_s = max(0.0, began + timeout_s - time.monotonic())
            try:
                recv(torch.empty(1, dtype=torch.int64, device="cpu"), rank, group, tag, timeout_s=left_s)
            except (PeerGone, WaitTimeout) as error:
                absent[rank] = 1
                why += f" {error}" if isinstance(error, PeerGone) else ""
                if not wait_all_ranks:
                    break
        for rank in range(1, group.size):  # who comes later hears at once that it is over
            with suppress(PeerGone):
                send(absent, rank, group, tag)
    if absent.any():
        missing = absent.nonzero().flatten().tolist()
        raise WaitTimeout(call, time.monotonic() - began, missing, group.rank, why if group.rank == 0 else "")
