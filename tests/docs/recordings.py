"""Make the recordings and pictures of the docs: `python -m tests.docs.recordings [NAME ...]`, such as doctor.svg.

The terminal and the browser are real. `python -m benchmarks.figures` draws the charts.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.docs import notebooks, terminal
from tests.docs.player import SHOTS, take
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.draw import svg

DOCS = Path(__file__).parents[2] / "docs"

ALL: Mapping[str, Callable[[], bytes]] = {
    "ring.svg": lambda: svg(CATALOGUE["all_reduce.ring"].schedule(4)).encode(),
    "doctor.svg": lambda: terminal.doctor().encode(),
    **{f"player/{name}.png": partial(take, shot) for name, shot in SHOTS.items()},
    **{f"notebooks/{file.name}": partial(notebooks.run, file) for file in notebooks.FILES},
}
"""Files in `docs`, and how each is made."""


if __name__ == "__main__":
    for name in sys.argv[1:] or ALL:
        (DOCS / name).write_bytes(ALL[name]())
        print(name)  # noqa: T201
