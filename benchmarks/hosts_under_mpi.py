"""What a rank over hosts does: calls by our engine and Gloo; and by Open MPI, too, where that has started the rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import torch

import unisono
from unisono.tools.cli.shared.timed_calls import ENGINES, Compared, Maker, Trial, compare

from .mpi import make_call
from .reports import OPEN_MPI

_TURNS, _SECONDS = 5, 3.0
"""For each call and size."""


def compare_calls(
    calls: Sequence[tuple[str, int]], folder: str, more: Mapping[str, Maker] | None = None
) -> list[list[Compared]]:
    """Calls, of so many bytes, each by all engines. more: see `compare`."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    engines = (*ENGINES, *(more or {}))
    return [
        compare([Trial(call, nbytes, engine=engine) for engine in engines], _TURNS, _SECONDS, folder, more)
        for call, nbytes in calls
    ]


def compare_beside_mpi(calls: Sequence[tuple[str, int]], folder: str) -> list[list[Compared]]:
    unisono.init(timeout_s=100)
    return compare_calls(calls, folder, {OPEN_MPI: _by_mpi})


def _by_mpi(trial: Trial, inp: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    sent, got = inp.numpy(), out.numpy()
    block = len(sent) // unisono.get_world_size()
    part = {"all_gather": (sent[:block], got), "reduce_scatter": (sent, got[:block])}
    return make_call(trial.collective, *part.get(trial.collective, (sent, got)))
