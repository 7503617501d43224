"""Record `unisono doctor` on a stuck job, as the README shows it."""

import os
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

from tests.support.programs import free_port, place, processes, run_python
from tests.support.waiting import until

_COLUMNS, _RANKS = 116, 4
_CHARACTER, _LINE = 7.8, 17
"""Width and height in the picture."""
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


_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}">
<style>
text {{ font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; fill: #1f2328 }}
rect {{ fill: #f6f8fa; stroke: #d1d9e0 }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} rect {{ fill: #151b23; stroke: #3d444d }} }}
</style>
<rect x="0.5" y="0.5" width="{inner:.0f}" height="{lower}" rx="6"/>
{lines}
</svg>
"""  # noqa: E501  one font


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
    return _svg([f"$ unisono doctor {ranks[0].pid}", *shown.rstrip().splitlines()])


def _svg(lines: list[str]) -> str:
    texts = [f'<text x="12" y="{k * _LINE + 8}">{escape(line)}</text>' for k, line in enumerate(lines, 1) if line]
    width, height = _COLUMNS * _CHARACTER + 24, (len(lines) + 1) * _LINE + 6
    return _SVG.format(width=width, height=height, inner=width - 1, lower=height - 1, lines="\n".join(texts))
