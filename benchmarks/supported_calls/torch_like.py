"""Tries with unisono and with torch.distributed over Gloo, whose calls have the same names and arguments."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed

import unisono
from unisono.base.errors import PeerError, WaitTimeout
from unisono.tools.cli.shared.timed_calls import start_gloo

from ..reports import GLOO
from .attempts import COMBINING, FACTORS, LOST, OPS, RANKS, Library, NoResult, Try, outcome, worst

_DIST: Any = torch.distributed

_PATIENCE_S = 2.0
"""A call that takes longer hangs: Gloo would wait for 30 minutes."""


class _TorchLike(Library):
    def __init__(self, name: str, folder: str) -> None:
        self.name, self.rank = name, unisono.get_rank()
        self._library: Any = unisono
        if name == GLOO:
            start_gloo(folder, _PATIENCE_S)
            self._library = _DIST

    def _perform(self, call: str, x: torch.Tensor, y: torch.Tensor | None, op: str, root: int) -> None:
        name = {one: f"{one}_single" for one in ("all_gather", "reduce_scatter", "all_to_all")}.get(call, call)
        if not hasattr(self._library, name):
            raise NoResult("no call")
        passed: list[Any] = [x] if y is None else [y, x]
        if call == "scatter":
            passed = [y, list(x.chunk(RANKS)) if self.rank == root else None]
        elif call == "gather":
            passed = [x, list(y.chunk(RANKS)) if y is not None and self.rank == root else None]
        if call in ("broadcast", "reduce", "scatter", "gather"):
            passed.append(root)
        if call in COMBINING:
            passed.append(self._op(op))
        getattr(self._library, name)(*passed)

    def _op(self, op: str) -> Any:
        factor = FACTORS[self.rank]
        if op == "custom":
            if self.name == GLOO:
                raise NoResult("no op")
            return unisono.make_op(OPS["custom"])
        if op == "premul_sum":
            return _DIST._make_nccl_premul_sum(factor) if self.name == GLOO else unisono.premul_sum(factor)  # noqa: SLF001
        return getattr(self._library.ReduceOp, op.upper())

    def _gather_blocks(self, blocks: Sequence[torch.Tensor] | None, x: torch.Tensor) -> Sequence[torch.Tensor]:
        made: Sequence[torch.Tensor] | None = self._library.all_gather(blocks, x)
        return made or blocks or []

    def _word(self, error: Exception) -> str:
        return "hangs" if isinstance(error, WaitTimeout) or "imed out" in str(error) else "raises"


def _attempt(one: Try, name: str, folder: str) -> str:
    return outcome(one, _TorchLike(name, folder))


def try_torch_like(name: str, tries: Sequence[Try]) -> list[str]:
    """The outcome of each try.

    After a wrong result, and where ranks are lost or see different things, the next try has new ranks; and the same one
    is made again on new ones, unless it was their first: it may have suffered from another.
    """
    outcomes: list[str] = []
    while (first := len(outcomes)) < len(tries):
        with tempfile.TemporaryDirectory() as folder, unisono.World(RANKS, timeout_s=30) as world:
            for one in tries[first:]:
                try:
                    seen = world.run(_attempt, one, name, folder)
                except WaitTimeout:
                    seen = ["hangs"]
                except PeerError as error:
                    if "was killed by signal" not in str(error):
                        raise  # a fault of what is tried here, not of the library
                    seen = ["aborts"]
                sound = len(set(seen)) == 1 and seen[0] not in ("wrong", *LOST)
                if sound or len(outcomes) == first:
                    outcomes.append(worst(seen))
                if not sound:
                    break
    return outcomes
