"""Make the recordings and pictures of the docs: `python -m tests.docs.recordings [NAME ...]`, such as doctor.svg.

The browser is real. `python -m benchmarks.figures` draws the charts.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.docs import terminal
from tests.docs.player import SHOTS, take
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.draw import svg

DOCS = Path(__file__).parents[2] / "docs"


def run(file: Path) -> bytes:
    """The file of a notebook with the outputs of all its cells, without what differs between runs."""
    notebook: Any = nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]
    metadata = dict(notebook.metadata)
    NotebookClient(notebook, timeout=100, record_timing=False).execute(cwd=str(file.parent))
    notebook.metadata = metadata  # without the version of Python
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = None
        for output in cell.get("outputs", []):
            if "execution_count" in output:
                output.execution_count = None
            if len(output.get("data", {})) > 1:
                del output.data["text/plain"]  # the type of an object, beside its picture
    return f"{nbformat.writes(notebook)}\n".encode()  # type: ignore[no-untyped-call]


ALL: Mapping[str, Callable[[], bytes]] = {
    "ring.svg": lambda: svg(CATALOGUE["all_reduce.ring"].schedule(4)).encode(),
    "doctor.svg": lambda: terminal.doctor().encode(),
    **{f"player/{name}.png": partial(take, shot) for name, shot in SHOTS.items()},
    **{f"notebooks/{file.name}": partial(run, file) for file in sorted((DOCS / "notebooks").glob("*.ipynb"))},
}
"""Files in `docs`, and how each is made."""


if __name__ == "__main__":
    for name in sys.argv[1:] or ALL:
        (DOCS / name).write_bytes(ALL[name]())
        print(name)  # noqa: T201
