"""What each library does with every call, dtype and op: `python -m benchmarks.supported_calls`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..machine import describe
from ..mpi import find
from ..names import GLOO, OPEN_MPI, OURS
from .attempts import TRIES
from .mpi_job import try_mpi
from .table import markdown
from .torch_like import try_torch_like


def calls(
    *,
    mpi: Annotated[bool, typer.Option(help="Try Open MPI too, where installed.")] = True,
    output: Annotated[Path | None, typer.Option(help="Write Markdown here.")] = None,
) -> None:
    """Try every call with every dtype and op on three ranks: ours, Gloo and MPI. Takes some minutes."""
    outcomes = {OURS: try_torch_like(OURS, TRIES), GLOO: try_torch_like(GLOO, TRIES)}
    notes = []
    found = find(OPEN_MPI) if mpi else "not asked for"
    if isinstance(found, str):
        notes.append(f"Open MPI: {found}")
    else:
        outcomes[OPEN_MPI] = try_mpi(found, TRIES)
    text = markdown(describe(), notes, outcomes)
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    typer.run(calls)
