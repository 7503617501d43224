"""The table of sizes that the ranks exchange: what each rank gives to and takes from every other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...base.errors import ArgumentError
from ...engine.tensors import ALL_DTYPES, DTYPE_CODES, dtype_name
from ..arguments import blank

_UNKNOWN = -1
_MOST_DIMS = 8
_GIVES, _TAKES, _DIMS, _SHAPE, _WORDS = 0, 1, 2, 3, 3 + _MOST_DIMS
"""The numbers about a peer: elements given to it and expected from it, dimensions and shape of the given tensor."""


def sides(
    collective: str,
    root: int,
    gives: Sequence[torch.Tensor | None],
    takes: Sequence[torch.Tensor | None] | None,
    size: int,
) -> torch.Tensor:
    """This rank's row of the table, int64: the code of its dtype, then _WORDS numbers for each peer."""
    known = [tensor for tensor in [*gives, *(takes or ())] if tensor is not None]
    row = [DTYPE_CODES[known[0].dtype] if known else _UNKNOWN]
    for peer in range(size):
        given, words = gives[peer], [0] * _WORDS
        if given is not None:
            words[_GIVES], words[_DIMS] = given.numel(), given.dim()
            if given.dim() <= _MOST_DIMS:
                words[_SHAPE : _SHAPE + given.dim()] = given.shape
        if takes is None:
            words[_TAKES] = _UNKNOWN if collective != "scatter" or peer == root else 0
        elif (taken := takes[peer]) is not None:
            words[_TAKES] = taken.numel()
        row += words
    return torch.tensor(row, dtype=torch.int64, device="cpu")


class Sides:
    """The rows of all ranks, and conclusions from them. Every rank comes to the same conclusions."""

    def __init__(self, table: torch.Tensor, collective: str, root: int) -> None:
        self._collective, self._root, self._ranks = collective, root, len(table)
        self._peers = table[:, 1:].reshape(self._ranks, self._ranks, _WORDS)
        self._dtypes = table[:, 0].tolist()
        self._gives: list[list[int]] = self._peers[:, :, _GIVES].tolist()
        self._takes: list[list[int]] = self._peers[:, :, _TAKES].tolist()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all blocks."""
        code = next(code for code in self._dtypes if code != _UNKNOWN)
        dtype: torch.dtype = ALL_DTYPES[code]
        return dtype

    def plain(self) -> bool:
        """Do all ranks know all sizes, and are they all equal?"""
        return not any(_UNKNOWN in taken for taken in self._takes) and len(set(self.extents())) == 1

    def extents(self) -> list[int]:
        """The elements of each block (all_to_all: of each pair of ranks), as in `Blocks.extents`."""
        ranks, gives = range(self._ranks), self._gives
        if self._collective == "all_to_all":
            return [gives[s][d] for s in ranks for d in ranks]
        if self._collective in ("scatter", "reduce_scatter"):
            return list(gives[self._root])
        return [gives[q][self._root] for q in ranks]

    def disagreement(self) -> dict[int, str]:
        """If sizes or dtypes do not fit: each rank's side as text. Empty if they fit."""
        wrong = self._pairs()
        codes = {code for code in self._dtypes if code != _UNKNOWN}
        if not wrong and len(codes) <= 1:
            return {}
        said = {}
        for rank in range(self._ranks):
            code = self._dtypes[rank]
            parts = [dtype_name(ALL_DTYPES[code])] if code != _UNKNOWN and len(codes) > 1 else []
            for s, d in wrong:
                if rank == s:
                    parts.append(f"gives rank {d} {self._given(s, d)}")
                if rank == d:
                    parts.append(f"expects {self._takes[d][s]} elements from rank {s}")
            said[rank] = "; ".join(parts) or "fits"
        return said

    def odd(self) -> list[int]:
        """The ranks to blame: ranks with another dtype than the first rank, otherwise the givers of wrong pairs."""
        first = next((code for code in self._dtypes if code != _UNKNOWN), _UNKNOWN)
        unlike = {rank for rank, code in enumerate(self._dtypes) if code not in (first, _UNKNOWN)}
        return sorted(unlike or {s for s, _ in self._pairs()})

    def make_takes(self, rank: int) -> list[torch.Tensor | None]:
        """New tensors for this rank's outputs, in the givers' shapes; None if the rank expects a known size."""
        made: list[torch.Tensor | None] = []
        for source in range(self._ranks):
            if self._takes[rank][source] != _UNKNOWN:
                made.append(None)
                continue
            dims = int(self._peers[source, rank, _DIMS])
            if dims > _MOST_DIMS:
                raise ArgumentError(
                    f"rank {source} gives rank {rank} a tensor of {dims} dimensions; where sizes are not given, "
                    f"{_MOST_DIMS} are the most: pass output tensors, or flatten the input"
                )
            if blank(0, self.dtype).dtype is not self.dtype:
                raise ArgumentError("quantized tensors of unknown sizes: pass output tensors, or .int_repr()")
            made.append(torch.empty(self._given(source, rank), dtype=self.dtype, device="cpu"))
        return made

    def _pairs(self) -> list[tuple[int, int]]:
        """The pairs (giver, taker) with different sizes. A reduce_scatter needs equal sizes from all ranks."""
        ranks, pairs = range(self._ranks), []
        for s in ranks:
            for d in ranks:
                taken = self._takes[d][s]
                if taken == _UNKNOWN and self._collective == "reduce_scatter":
                    taken = self._gives[0][d]
                if taken not in (_UNKNOWN, self._gives[s][d]):
                    pairs.append((s, d))
        return pairs

    def _given(self, source: int, rank: int) -> list[int]:
        dims = int(self._peers[source, rank, _DIMS])
        shape: list[int] = self._peers[source, rank, _SHAPE : _SHAPE + dims].tolist()
        return shape if dims <= _MOST_DIMS else [self._gives[source][rank]]
