"""A checked call, as everything below sees it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..arguments import count_name, dtype_name
from ..ops import CustomOp, PremulSum

__all__ = ["Request", "Tensors", "call_words"]

Tensors = torch.Tensor | Sequence[torch.Tensor] | None

_ROOTS = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}
_MOST_SIZES = 8


@dataclass(frozen=True)
class Request:
    """A checked call.

    like: a block as users see it; the tensor itself where any cut will do; the largest block where they differ.
    inp, out: a tensor, a list with one block per rank, or None where this rank has none. in_place: they are one.
    extents: the elements of each block (all_to_all: of each pair of ranks), where they differ. words: what else the
    ranks must agree on, in words. says: the call in words, where it serves another.
    """

    collective: str
    like: torch.Tensor
    inp: Tensors
    out: Tensors
    op: str | CustomOp | PremulSum | None = None
    root: int = 0
    in_place: bool = False
    extents: tuple[int, ...] | None = None
    words: str = ""
    says: str = ""

    def written_on(self, rank: int) -> Sequence[torch.Tensor]:
        """The tensors that this rank gets something into."""
        out = self.out
        if out is None or (self.collective == "broadcast" and rank == self.root):
            return ()
        if self.collective == "reduce" and rank != self.root:
            return ()
        return [out] if isinstance(out, torch.Tensor) else out

    @property
    def text(self) -> str:
        """The call in words: `broadcast(float32[10], src=2)`. Ranks whose words differ do not run together."""
        if self.says:
            return self.says
        if self.collective == "barrier":
            return "barrier()"
        return f"{self.collective}({call_words(self._sizes(), self.collective, self.root, self.op, self.words)})"

    def _sizes(self) -> str:
        if self.extents is None:
            return count_name(self.like)
        some = " ".join(map(str, self.extents[:_MOST_SIZES]))
        if len(self.extents) > _MOST_SIZES:
            some += f" ... {zlib.crc32(str(self.extents).encode()):08x}"
        return f"{dtype_name(self.like.dtype)}[{some}]"


def call_words(sizes: str, collective: str, root: int, op: str | CustomOp | PremulSum | None, words: str = "") -> str:
    """What stands between the brackets: `float32[10], src=2`."""
    at = f"{_ROOTS[collective]}={root}" if collective in _ROOTS else ""
    return ", ".join(filter(None, [sizes, at, op if isinstance(op, str | None) else op.text, words]))
