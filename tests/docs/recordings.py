"""Record `unisono doctor` on a stuck job, as the README shows it: `python -m tests.docs.recordings`."""

import io
import os
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.support.ports import free_port
from tests.support.programs import place, processes, run_python
from tests.support.waiting import until

FILE = Path(__file__).parents[2] / "docs" / "doctor.svg"
_WIDTH, _RANKS = 116, 4
_FOLDER = "/home/me/project"
"""Shown in place of a temporary folder, whose name is as long."""
_PROGRAMS = {
    "data.py": """\
import time


def tokenize(text):
    time.sleep(3600)
""",
    "train.py": """\
import torch
import unisono
from data import tokenize


def main():
    gradient = torch.ones(1000)
    for step in range(10):
        if unisono.get_rank() == 2 and step == 5:
            tokenize("a long text")
        unisono.all_reduce(gradient, op="avg")


unisono.init()
main()
""",
}
"""A job whose rank 2 does not come to its sixth call."""


def record() -> str:
    """The SVG of a terminal in which the command was run."""
    with tempfile.TemporaryDirectory() as folder, processes() as python:
        for name, text in _PROGRAMS.items():
            Path(folder, name).write_text(text)
        port = free_port()
        ranks = [python(Path(folder, "train.py"), **place(rank, _RANKS, port)) for rank in range(_RANKS)]
        said = ""

        def stuck() -> bool:
            nonlocal said
            shown = {**os.environ, "COLUMNS": f"{_WIDTH}", "FORCE_COLOR": "1", "TERM": "xterm-256color"}
            said = run_python("-m", "unisono", "doctor", ranks[0].pid, env=shown).stdout.replace(folder, _FOLDER)
            return "waited" in said and "data.py" in said

        until(stuck, 60)
        terminal = Console(record=True, width=_WIDTH, file=io.StringIO())
        terminal.print(f"$ unisono doctor {ranks[0].pid}", highlight=False)
        terminal.print(Text.from_ansi(said))
    return terminal.export_svg(title="a stuck job", unique_id="doctor")


if __name__ == "__main__":
    FILE.write_text(record())
    print(FILE)  # noqa: T201
