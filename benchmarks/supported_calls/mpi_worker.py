"""An MPI rank: it makes some tries and writes a line with the outcome of each.

Started by `mpi_job.try_mpi` as `mpiexec -n 3 python -m benchmarks.supported_calls.mpi_worker FOLDER FIRST LAST`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .attempts import COMBINING, OPS, TRIES, Try, is_number, outcome
from .library import Library, NoResult

BROKEN = "broken"
"""Starts the line of a try that failed by a bug of its own."""

_NAMES = {"sum": "SUM", "product": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}


class _Mpi(Library):
    """Open MPI by way of mpi4py, which takes torch tensors as buffers."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._world: Any = MPI.COMM_WORLD
        self.rank = int(self._world.Get_rank())

    def _perform(self, call: str, x: torch.Tensor, y: torch.Tensor | None, op: str, root: int) -> None:
        world, here = self._world, self._mpi.IN_PLACE
        combining: Any = self._op(op, x.dtype) if call in COMBINING else None
        calls: dict[str, Any] = {
            "all_reduce": lambda: world.Allreduce(here, x, combining),
            "reduce": lambda: world.Reduce(*((here, x) if self.rank == root else (x, None)), combining, root),
            "reduce_scatter": lambda: world.Reduce_scatter_block(x, y, combining),
            "scan": lambda: world.Scan(here, x, combining),
            "exscan": lambda: world.Exscan(here, x, combining),
            "broadcast": lambda: world.Bcast(x, root),
            "scatter": lambda: world.Scatter(x if self.rank == root else None, y, root),
            "gather": lambda: world.Gather(x, y if self.rank == root else None, root),
            "all_gather": lambda: world.Allgather(x, y),
            "all_to_all": lambda: world.Alltoall(x, y),
        }
        try:
            calls[call]()
        finally:
            if op == "custom" and call in COMBINING:
                combining.Free()  # there can only be few

    def _op(self, op: str, dtype: torch.dtype) -> Any:
        if op == "custom":
            return self._mpi.Op.Create(_custom(dtype))
        if op not in _NAMES:
            raise NoResult("no op")
        return getattr(self._mpi, _NAMES[op])

    def _gather_blocks(self, blocks: Sequence[torch.Tensor] | None, x: torch.Tensor) -> Sequence[torch.Tensor]:
        if blocks is None:
            raise NoResult("no call")
        sizes = [block.numel() for block in blocks]
        whole = torch.zeros(sum(sizes))
        self._world.Allgatherv(x, [whole, sizes])
        return list(whole.split(sizes))  # type: ignore[no-untyped-call]

    def _word(self, error: Exception) -> str:
        if isinstance(error, KeyError):  # mpi4py looks for an MPI type by the letter of the buffer's
            return "no type"
        return "no buffer" if isinstance(error, BufferError | TypeError) else "raises"


def _custom(dtype: torch.dtype) -> Any:
    """OPS["custom"] on what MPI passes as memory; nothing, where torch knows no numbers: an exception would end MPI."""
    wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64

    def function(x: Any, y: Any, _type: Any) -> None:
        if is_number(dtype):
            before, after = (torch.frombuffer(memory, dtype=dtype) for memory in (x, y))
            after.copy_(OPS["custom"](before.to(wide), after.to(wide)))

    return function


def main(folder: Path, first: int, last: int) -> None:
    """Do the tries from `first` up to `last`."""
    library = _Mpi()
    with (folder / str(library.rank)).open("a") as out:
        for one in TRIES[first:last]:
            print(_line(one, library), file=out, flush=True)


def _line(one: Try, library: Library) -> str:
    try:
        return outcome(one, library)
    except Exception as error:  # noqa: BLE001  told by `mpi`, which raises it
        return f"{BROKEN}: {one}: {error!r}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
