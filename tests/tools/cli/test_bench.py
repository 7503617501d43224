"""`unisono bench`: its verdicts, its checks, and runs of a few small sizes. No test looks at a time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import unisono
from unisono.base.errors import ArgumentError
from unisono.tools.cli.bench import bench as command
from unisono.tools.cli.bench.bench_calls import Turn, measure, timed
from unisono.tools.cli.bench.how_much_faster import verdict
from unisono.tools.cli.shared.beside_gloo import ENGINES
from unisono.tools.machine.load import Load


def run(*arguments: str, columns: int = 80) -> Any:
    app = typer.Typer()
    app.command()(command.bench)
    return CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": str(columns)})


def test_every_size_has_a_verdict_and_is_named_as_given() -> None:
    done = run("--ranks", "2", "--sizes", "8,1KB,4096KiB,1234568", "--seconds", "0.2")
    assert done.exit_code == 0, done.output
    assert "all_reduce of float32 on 2 ranks" in done.stdout
    for size in ("8 B", "1 KB", "4096 KiB", "1234568 B"):
        assert re.search(
            rf"^ *{size} +\S+ [nµm]?s +\S+ [nµm]?s +(\S+x (faster|slower) than|about as fast as) Gloo",
            done.stdout,
            re.M,
        )
    assert "Every element of every result was right." in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_without_a_terminal_it_says_nothing_but_the_result() -> None:
    assert run("--ranks", "2", "--sizes", "8,64", "--seconds", "0").stderr == ""


def test_without_time_each_size_still_has_its_turn() -> None:
    done = run("--ranks", "2", "--sizes", "8", "--seconds", "0")
    assert "Medians of 1 to 1 calls each" in done.stdout


def _lies(engine: str, folder: str, nbytes: int, seconds: float) -> Turn:
    return Turn([2e-6 if engine == "Gloo" else 1e-6], 3 if engine == "Gloo" and nbytes == 64 else 0)


def test_a_wrong_element_fails_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "measure", _lies)
    done = run("--ranks", "2", "--sizes", "8,64", "--seconds", "0")
    assert done.exit_code == 1
    assert "2.0x faster than Gloo" in done.stdout
    assert "6 elements of Gloo's results are wrong" in done.stdout
    assert "of unisono's results" not in done.stdout
    assert "was right" not in done.stdout


@pytest.mark.parametrize("busy", [0.1, 2.0])
def test_the_load_of_other_programs_stands_beside_the_verdict(busy: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "measure", _lies)
    monkeypatch.setattr(command, "processors", lambda: 2)
    monkeypatch.setattr(command, "look_at_load", lambda: Load(busy, 0.0, "python, 17"))
    done = run("--ranks", "2", "--sizes", "8", "--seconds", "0", columns=200)
    lines = done.stdout.splitlines()
    after = lines[next(k for k, line in enumerate(lines) if line.startswith("Best: ")) + 1]
    load = "But other programs use 2.0 of 2 processors (most: python, 17): that is what was measured."
    assert (after == load) is (busy > 1), done.stdout


@pytest.mark.parametrize(
    ("ours_s", "gloo_s", "words"),
    [
        (1.0, 17.2, "17x faster than Gloo"),
        (1.0, 9.96, "10x faster than Gloo"),
        (1.0, 1.54, "1.5x faster than Gloo"),
        (1.0, 1.05, "about as fast as Gloo"),
        (1.05, 1.0, "about as fast as Gloo"),
        (2.5, 1.0, "2.5x slower than Gloo"),
    ],
)
def test_verdicts(ours_s: float, gloo_s: float, words: str) -> None:
    assert verdict(ours_s, gloo_s) == words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "1"], "1 ranks have nothing to sum"),
        (["--sizes", "8,many"], "'many' is not a number of bytes"),
        (["--sizes", "8,10"], "--sizes 10: a float32 has 4 bytes"),
        (["--sizes", "0"], "--sizes 0: a float32 has 4 bytes"),
    ],
)
def test_wrong_options_are_explained(arguments: list[str], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        run(*arguments)


# ---------------------------------------------------------------- what a rank does


def _wrong(fault: str) -> int:
    calls = 0

    def all_reduce(tensor: torch.Tensor) -> None:
        nonlocal calls
        calls += 1
        unisono.all_reduce(tensor)
        if fault == "an element":
            tensor[3] += 1
        elif fault == "blocks exchanged":
            tensor.copy_(torch.cat([tensor[8:], tensor[:8]]))
        elif fault == "the first result again" and calls > 1:
            tensor.copy_(first)
        first.copy_(tensor)

    first = torch.zeros(16)
    turn = timed(all_reduce, 64, 0.0)
    assert len(turn.times) == 1
    assert calls == 5
    return turn.wrong


@pytest.mark.parametrize(
    ("fault", "wrong"), [("", 0), ("an element", 5), ("blocks exchanged", 16), ("the first result again", 4 * 14)]
)
def test_faults_are_counted_in_every_call(fault: str, wrong: int) -> None:
    """Five calls are made, one of them timed. The first sums numbers that repeat after 13 of its 16 places."""
    assert unisono.run(_wrong, ranks=3, args=(fault,)) == [wrong] * 3


def test_both_engines_sum_right(tmp_path: Path) -> None:
    with unisono.world(3, timeout_s=60) as world:
        for engine in ENGINES:
            turns = world.run(measure, engine, str(tmp_path), 4100, 0.01)
            assert [turn.wrong for turn in turns] == [0, 0, 0]
            assert len({len(turn.times) for turn in turns}) == 1
