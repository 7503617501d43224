"""The notebooks are executed, cell by cell, by a kernel of their own; what they show is kept out of the repository."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.markdown import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


@each
def test_outputs_are_not_kept(path: Path) -> None:
    for cell in read(path).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.long
@each
def test_it_runs_and_shows_pictures(path: Path) -> None:
    notebook = read(path)
    client = NotebookClient(notebook, timeout=60, resources={"metadata": {"path": path.parent}})
    client.execute()  # raises CellExecutionError with the cell and its traceback
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [kind for output in outputs for kind in output.get("data", {})]
    assert shown.count("image/svg+xml") >= 3
    assert shown.count("text/markdown") >= 3
    assert not [output for output in outputs if output.output_type == "stream" and output.name == "stderr"]
