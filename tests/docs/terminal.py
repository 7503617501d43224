"""Record `unisono doctor` on a stuck job, as the README shows it."""

import os
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console

from tests.support.programs import free_port, place, processes, run_python
from tests.support.waiting import until

_COLUMNS, _RANKS = 116, 4
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


def doctor() -> str:
    """The SVG of what the command shows on a terminal."""
    with tempfile.TemporaryDirectory() as folder, processes() as python:
        for name, text in _PROGRAMS.items():
            Path(folder, name).write_text(text)
        port = free_port()
        ranks = [python(Path(folder, "train.py"), **place(rank, _RANKS, port)) for rank in range(_RANKS)]
        shown = ""

        def stuck() -> bool:
            nonlocal shown
            done = run_python("-m", "unisono", "doctor", ranks[0].pid, env={**os.environ, "COLUMNS": f"{_COLUMNS}"})
            shown = done.stdout.replace(folder, _FOLDER)
            return "waited" in shown and "data.py" in shown

        until(stuck, 60)
    screen = Console(file=StringIO(), width=_COLUMNS, record=True)
    screen.print(f"$ unisono doctor {ranks[0].pid}\n{shown.rstrip()}", highlight=False, markup=False)
    return screen.export_svg(title="unisono doctor")
