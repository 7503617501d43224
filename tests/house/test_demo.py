"""The program of `make demo`: end to end in a tiny configuration, and the sums of its closing table."""

from __future__ import annotations

import re

import pytest
import torch
import typer
from examples.demo.__main__ import demo
from examples.demo.model import LENGTH, CharacterModel, read_text
from examples.demo.report import Totals, difference, mean_loss, totals
from examples.demo.training import Step
from typer.testing import CliRunner

from unisono.base.errors import ArgumentError


def run(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(demo)
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_demo_end_to_end() -> None:
    printed = run("--steps", "5", "--ranks", "2")
    for collective in ("reduce", "all_reduce", "scatter", "gather", "all_gather", "broadcast"):
        assert re.search(rf"│ {collective} +│ before", printed)
    sums = re.findall(r"│ after +│ ([\d ]+?) +│ ([\d ]+?) +│", printed)
    assert ("3 30", "2 20") in sums  # reduce: rank 1 keeps what it had
    assert ("3 30", "3 30") in sums  # all_reduce
    assert re.search(r"│ steps +│ 5 +│ 5 ", printed)
    assert "unisono: the models of all ranks have the same bits." in printed
    apart = re.search(r"at most (\S+) apart", printed)
    assert apart
    assert float(apart[1]) < 1e-3


def test_without_a_terminal_the_demo_shows_what_it_has_done_only() -> None:
    printed = run("--steps", "11", "--ranks", "2")
    assert printed.startswith("Starting 2 processes.\n")
    assert re.search(r"│ steps +│ 11 +│ 11 ", printed)
    assert "training:" not in printed


def test_wrong_options_are_explained() -> None:
    with pytest.raises(ArgumentError, match="at least 2 ranks and 1 step"):
        run("--ranks", "1")


def test_totals_take_the_mean_rank_for_computing_and_the_slowest_for_communicating() -> None:
    steps = [
        [Step(1.0, 2.0, 0.0, 0.5), Step(3.0, 1.0, 1.0, 0.25)],
        [Step(2.0, 4.0, 0.5, 0.5), Step(2.5, 4.0, 0.5, 1.0)],
    ]
    assert totals(steps) == Totals(compute_s=5.5, wait_s=1.0, communicate_s=1.5, whole_s=8.0)
    assert mean_loss(steps[0]) == 2.0
    assert difference(steps, [steps[0], steps[0]]) == 0.25


def test_the_text_is_plain_and_long_enough() -> None:
    text = read_text()
    assert text.dtype == torch.int64
    assert len(text) > 100 * LENGTH
    assert 0 <= int(text.min()) <= int(text.max()) < 128


def test_the_model_learns_a_pattern() -> None:
    """Two letters in turns: the loss must fall from log(128) to almost nothing, and the text must go on."""
    torch.manual_seed(0)
    model = CharacterModel()
    windows = torch.tensor([list(b"ab" * 16), list(b"ba" * 16)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model.loss(windows)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 4
    assert losses[-1] < 0.1
    assert model.write("aba", 8) == "abababababa"
    assert sum(parameter.numel() for parameter in model.parameters()) == 170_240
