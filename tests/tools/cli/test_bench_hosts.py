"""`unisono bench --hosts`: its checks, and runs on hosts that are parts of this machine. No test looks at a time."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import unisono
from unisono.base.errors import ArgumentError
from unisono.tools.cli.bench import bench, bench_hosts
from unisono.tools.cli.bench.host_calls import HostTurns, host_cells, measure_over_hosts
from unisono.tools.machine.load import Load

ROW = r"^(all_reduce|broadcast|all_gather|reduce_scatter|all_to_all) +(\d+ \w+) +\S+ [nµm]?s +\S+ [nµm]?s +\S.* Gloo *$"


def run(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(bench.bench)
    return CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "80"})


def test_hosts_are_processes() -> None:
    done = run("--hosts", "2+1", "--sizes", "8,1KiB", "--seconds", "0")
    assert done.exit_code == 0, done.output
    assert "3 ranks on 2 hosts (2+1)" in done.stdout
    assert "processes that share no memory, and speak over loopback." in done.stdout
    assert re.findall(ROW, done.stdout, re.MULTILINE) == [
        ("all_reduce", "8 B"), ("all_reduce", "1 KiB"), ("broadcast", "1 KiB"), ("all_gather", "1 KiB"),
        ("reduce_scatter", "1 KiB"), ("all_to_all", "1 KiB"),
    ]  # fmt: skip
    assert "Every element of every result was the same as Gloo's." in done.stdout


def test_another_result_than_gloo_s_fails_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [[HostTurns({"unisono": [2e-6], "Gloo": [1e-6]}, 3)] * 5] * 2
    monkeypatch.setattr(bench_hosts, "_measure", lambda *_, **__: turns)
    monkeypatch.setattr(bench, "processors", lambda: 2)
    monkeypatch.setattr(bench, "look_at_load", lambda: Load(2.0, 0.0, "python, 17"))
    done = run("--hosts", "2x1", "--sizes", "8")
    assert done.exit_code == 1
    assert "30 elements of the results differ from Gloo's" in done.stdout
    assert "the same as" not in done.stdout
    assert "But other programs use 2.0 of 2 processors" in done.stdout


def _differing() -> list[int]:
    def wrong(tensor: torch.Tensor, *_: object) -> None:
        tensor[0] += 1

    unisono.broadcast = wrong if unisono.get_rank() == 1 else lambda *_: None  # type: ignore[assignment]
    return [turns.wrong for turns in measure_over_hosts(("127.0.0.1",) * 2, [("broadcast", 64)], 0.0)]


def test_results_are_compared() -> None:
    """Neither rank's copy is the root's: rank 0's is, but rank 1's has another number at each of 16 places."""
    cells = host_cells([64])
    with unisono.world(hosts="2x1", timeout_s=60) as world:
        found = world.run(measure_over_hosts, ("127.0.0.1",) * 2, cells, 0.0)
        assert [[turns.wrong for turns in rank] for rank in found] == [[0] * len(cells)] * 2
        assert {len(times) for rank in found for turns in rank for times in turns.times.values()} == {5}
        assert world.run(_differing) == [[0], [16]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hosts", "1x4"], "one host: leave it out"),
        (["--hosts", "2x2", "--ranks", "3"], "leave out --ranks 3"),
    ],
)
def test_wrong_options_are_explained(arguments: list[str], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        run(*arguments)
