"""A library under test, on one rank. An error in one of its calls is an outcome; any other is a bug of the test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

LOST = ("aborts", "hangs")
"""Outcomes after which the ranks cannot be used any more."""


class NoResult(Exception):
    """Raised where a call has no result. word: "raises", "hangs", or what the library lacks, such as "no op"."""

    def __init__(self, word: str) -> None:
        self.word = word
        super().__init__(word)


class Library:
    """Makes calls, and turns what they raise into NoResult."""

    rank: int

    def perform(
        self, call: str, x: torch.Tensor, y: torch.Tensor | None = None, op: str = "sum", root: int = 0
    ) -> None:
        """Make a call: in place with x, or from x to y."""
        self._guarded(self._perform, call, x, y, op, root)

    def gather_blocks(self, blocks: Sequence[torch.Tensor] | None, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """An all_gather of blocks of several sizes; None where they are not known. Returns the blocks."""
        made: Sequence[torch.Tensor] = self._guarded(self._gather_blocks, blocks, x)
        return made

    def _guarded(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except NoResult:
            raise
        except Exception as error:
            raise NoResult(self._word(error)) from error

    def _perform(self, call: str, x: torch.Tensor, y: torch.Tensor | None, op: str, root: int) -> None:
        raise NotImplementedError

    def _gather_blocks(self, blocks: Sequence[torch.Tensor] | None, x: torch.Tensor) -> Sequence[torch.Tensor]:
        raise NotImplementedError

    def _word(self, _error: Exception) -> str:
        return "raises"
