"""Make the recordings and pictures of the docs: `python -m tests.docs.recordings [NAME ...]`, such as doctor.svg.

The browser is real. `python -m benchmarks.figures` draws the charts.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from nbclient import NotebookClient

from tests.docs import terminal
from tests.support.browser import browser, opened
from unisono.schedule import Hosts
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import spanning
from unisono.schedule.draw import html, svg

DOCS = Path(__file__).parents[2] / "docs"


class Shot(NamedTuple):
    """names: of the tables of eight ranks on the page. script: what is done before the picture is taken.

    height: of the window; 0 for that of the page. scheme: light or dark.
    """

    names: str
    script: str
    width: int = 1040
    height: int = 0
    scheme: str = "light"


CLOCK = "view('ring'), $('pace').value = 'clock', price(), go(7.5)"
SHOTS = {
    "ring": Shot("all_reduce.ring", "go(4.5)"),
    "two": Shot("all_reduce.ring all_reduce.circulant", CLOCK, 1240, scheme="dark"),
    "tree": Shot("broadcast.binomial", "view('tree'), go(2), point(panels[0], 4)"),
    "hosts": Shot("all_reduce", "go(1.4)"),
    "phone": Shot("all_gather.ring", "go(3.45)", 360, 700, "dark"),
}
"""The pictures of docs/player, by name."""


def take(shot: Shot) -> bytes:
    """The picture, as a PNG."""
    over_hosts = spanning("all_reduce", Hosts.parse("2x4"), rails=4)
    tables = [CATALOGUE[name].schedule(8) if name in CATALOGUE else over_hosts for name in shot.names.split()]
    page, height = html(*tables, nbytes=1 << 20), shot.height or 900
    with browser() as chromium, opened(chromium, page, shot.width, height, color_scheme=shot.scheme) as tab:
        tab.evaluate(f"{shot.script}, 0")
        if not shot.height:
            height = tab.evaluate("document.documentElement.scrollHeight")
            tab.set_viewport_size({"width": shot.width, "height": height})
        return tab.screenshot()


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
