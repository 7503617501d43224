"""Run the notebooks of the docs. Their files keep the outputs, so that code hosts show the pictures."""

from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
FILES = sorted(FOLDER.glob("*.ipynb"))


def run(file: Path) -> bytes:
    """A notebook's file with the outputs of all its cells, without what differs between runs."""
    notebook: Any = nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]
    metadata = dict(notebook.metadata)
    NotebookClient(notebook, timeout=100, record_timing=False).execute(cwd=str(FOLDER))
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
