"""`Request`: a checked call."""

from collections.abc import Sequence
from typing import NamedTuple, Self, TypeGuard

import torch

from ...base.records import CallRecord, digest
from ...engine.reducers import CustomOp
from ...engine.tensors import dtype_name
from ..arguments import blank, scale_name
from ..ops import PremulSum

Tensors = torch.Tensor | Sequence[torch.Tensor] | None

_MOST_COUNTS = 8


def is_one(tensors: Tensors) -> TypeGuard[torch.Tensor]:
    """Is this one tensor, and not a list of tensors or None?"""
    return isinstance(tensors, torch.Tensor)


class Request(NamedTuple):
    """A checked call.

    like: a tensor like a block, the largest if they differ; without blocks, the tensor.
    inp, out: a tensor, a list with one block per rank, or None if this rank has none.
    in_place: inp is out.
    counts: the elements of each block (all_to_all: of each pair of ranks) if they differ, else None. All ranks know
    them: see `blocks`.
    words: what else the ranks must agree on.
    says: the record of the user's call, if this request is a step of it.
    """

    collective: str
    like: torch.Tensor
    inp: Tensors
    out: Tensors
    op: str | CustomOp | PremulSum | None = None
    root: int = 0
    in_place: bool = False
    counts: tuple[int, ...] | None = None
    words: str = ""
    says: CallRecord | None = None

    def written_on(self, rank: int) -> Sequence[torch.Tensor]:
        """The tensors that the call writes on this rank."""
        not_written = {"broadcast": rank == self.root, "reduce": rank != self.root, "barrier": True}
        if self.out is None or not_written.get(self.collective, False):
            return ()
        return [self.out] if isinstance(self.out, torch.Tensor) else self.out

    def sized(self, sizes: Sequence[int]) -> Self:
        """This request with blocks of these sizes."""
        counts = tuple(sizes) if len(set(sizes)) > 1 else None
        if counts is None and sizes[0] == self.like.numel():
            return self
        words = ", ".join(filter(None, [scale_name(self.like), self.words]))  # a blank tensor has no scale
        return self._replace(like=blank(max(sizes), self.like.dtype), counts=counts, words=words)

    @property
    def record(self) -> CallRecord:
        """The call as a record; calls with different records raise MismatchError."""
        if self.says is not None:
            return self.says
        if self.collective == "barrier":
            return CallRecord("barrier")
        op = self.op if isinstance(self.op, str) else self.op.text if self.op else ""
        counts = (self.like.numel(),) if self.counts is None else self.counts
        more = f"{digest(counts):016x}" if len(counts) > _MOST_COUNTS else ""
        words = ", ".join(filter(None, [scale_name(self.like), self.words]))
        dtype = dtype_name(self.like.dtype)
        return CallRecord(self.collective, dtype, counts[:_MOST_COUNTS], more, op, self.root, words)
