"""Tries with Open MPI, in jobs of RANKS ranks. A try that ends its job is followed by a new job.

A rank is `python -m benchmarks.supported_calls.open_mpi FOLDER FIRST LAST`. It writes a line for each try.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from unisono.base.errors import InternalError

from ..mpi import Mpi, make_call, start
from .attempts import COMBINING, LOST, OPS, RANKS, SITUATIONS, TRIES, Library, NoResult, Try, is_number, outcome, worst

_START_S, _PATIENCE_S = 60.0, 5.0
"""How long a job may take to start, and a try before it counts as one that hangs."""


def try_mpi(mpi: Mpi, tries: Sequence[Try]) -> list[str]:
    """The outcome of each try. Those of SITUATIONS, which may leave the ranks apart, have a job of their own.

    A try that ends its job is made again in a new one, unless it was the first: it may have suffered from another.
    """
    outcomes: list[str] = []
    alone = next(k for k, one in enumerate(tries) if one.call in SITUATIONS)
    while (first := len(outcomes)) < len(tries):
        last = alone if first < alone else first + 1
        found = _run(mpi, first, last)
        outcomes += found[:-1] if len(found) > 1 and found[-1] in LOST else found
    return outcomes


def _run(mpi: Mpi, first: int, last: int) -> list[str]:
    """The outcomes of the tries from first up to last, or up to one at which the job ended."""
    with tempfile.TemporaryDirectory() as folder:
        worker = f"{__package__}.open_mpi"
        process = start(mpi, RANKS, worker, folder, first, last, output=subprocess.DEVNULL)
        done, deadline = 0, time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
            if (now := sum(path.stat().st_size for path in Path(folder).iterdir())) > done:
                done, deadline = now, time.monotonic() + _PATIENCE_S
        hangs = process.poll() is None
        if hangs:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        outcomes = _lines(folder)
        if len(outcomes) < last - first:
            outcomes.append("hangs" if hangs else "aborts")
        return outcomes


def _lines(folder: str) -> list[str]:
    """The outcomes that all ranks have written."""
    files = [Path(folder) / str(rank) for rank in range(RANKS)]
    written = [path.read_text().splitlines() if path.exists() else [] for path in files]
    for line in (line for lines in written for line in lines if line.startswith(BROKEN)):
        raise InternalError(line)
    return [worst(seen) for seen in zip(*written, strict=False)]


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
        combining: Any = self._op(op, x.dtype) if call in COMBINING else None
        try:
            make_call(call, x, y, combining, root)()
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
