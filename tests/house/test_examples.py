"""Each example and the demo is run as a script, and what it prints is held against what must come out."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from examples.demo.__main__ import demo
from typer.testing import CliRunner

from tests.support.programs import torchrun

ROOT = Path(__file__).parents[2]
Play = Callable[[str], tuple[dict[str, Any], str]]


@pytest.fixture
def play(capsys: pytest.CaptureFixture[str]) -> Play:
    """play(name): run an example as `python` does; its variables, and what it printed."""

    def run(name: str) -> tuple[dict[str, Any], str]:
        values = runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
        return values, capsys.readouterr().out

    return run


def test_six_collectives(play: Play) -> None:
    _, printed = play("six_collectives")
    rows = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    assert rows[0] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    ranks, all_ranks = ["1", "10", "100", "1000"], "1 10 100 1000"
    afters = {
        "reduce": ["1111", "10", "100", "1000"], "all_reduce": ["1111"] * 4, "scatter": ["5", "6", "7", "8"],
        "gather": [all_ranks, "·", "·", "·"], "all_gather": [all_ranks] * 4, "broadcast": ["1"] * 4,
    }  # fmt: skip
    assert [row[0].removesuffix("before").strip() for row in rows[1::2]] == [*afters]
    befores = [["5 6 7 8", "·", "·", "·"] if name == "scatter" else ranks for name in afters]
    assert [row[-4:] for row in rows[1::2]] == befores
    assert [row[-4:] for row in rows[2::2]] == [*afters.values()]


@pytest.mark.long
def test_averaging_models(play: Play) -> None:
    _, printed = play("averaging_models")
    rounds = [[float(number) for number in re.findall(r"([\d.]+)%", line)] for line in printed.splitlines()]
    assert [len(numbers) for numbers in rounds] == [5] * 5
    *alone, average = rounds[-1]
    assert len(set(alone)) > 1
    assert average > max(alone)
    assert average > rounds[0][-1] > 15  # it learns, and knows more than to guess always a space


def test_data_parallel(play: Play) -> None:
    values, printed = play("data_parallel")
    alone, together = values["alone"], values["together"]
    assert together == pytest.approx(alone, abs=1e-4)
    assert together[0] > 4.5
    assert sum(together[-10:]) / 10 < 3.3
    assert f"step 50: loss {alone[50]:.6f} with one rank, {together[50]:.6f} with four" in printed
    assert float(printed.split()[-2]) < 1e-4


@pytest.mark.long
def test_data_parallel_under_torchrun() -> None:
    done = torchrun(2, ROOT / "examples" / "data_parallel.py")
    assert re.fullmatch(r"2 ranks: loss 4\.\d+ falls to [23]\.\d+\n", done.stdout), done.stderr


def test_tensor_parallel(play: Play) -> None:
    values, printed = play("tensor_parallel")
    assert "by_columns: 4 ranks with (64, 12) of (64, 48) weights each" in printed
    assert "by_rows: 4 ranks with (16, 48) of (64, 48) weights each" in printed
    differences = re.findall(r"outputs at most (\S+) apart, gradients (\S+)", printed)
    assert len(differences) == 2
    assert all(float(difference) < 1e-10 for pair in differences for difference in pair)
    assert values["expected"].abs().min() > 1e-6  # what was compared is something


def test_zero_optimizer(play: Play) -> None:
    values, printed = play("zero_optimizer")
    psi = values["psi"]
    assert torch.allclose(values["plain"], values["zero"], rtol=0, atol=1e-6)
    assert f"{psi} weights: Adam keeps {2 * psi} numbers on every rank, sharded {2 * psi // 4}" in printed
    sent = f"a rank sends 1.5 psi (paper: 2 psi), {6 * psi:,} bytes, per step"
    assert f"all_reduce: {sent}" in printed
    assert f"reduce_scatter + all_gather: {sent}" in printed


def test_own_algorithm(play: Play) -> None:
    values, printed = play("own_algorithm")
    assert "──→ copies   ─+→ adds" in printed
    said = "is not a correct all_reduce: rank 0 ends without the parts of ranks 1, 2 of chunk 0"
    assert f"Refused: forgetful {said}" in printed
    assert "rounds: 4, at best 2; the busiest rank sends 2.0 of the vector" in printed
    assert printed.rstrip().endswith(str([[111.0, 222.0]] * 3))
    assert values["table"].rounds == 4


@pytest.mark.long
def test_best_map(play: Play) -> None:
    values, printed = play("best_map")
    head, sizes, *lines = printed.splitlines()
    assert head == "all_reduce over 100 Gbit/s, 5 µs"
    assert len(re.split(r" {2,}", sizes.strip())) == 10
    assert [line.split(" ranks")[0].strip() for line in lines[:4]] == ["64", "32", "16", "8"]
    assert lines[4].startswith("A  all_reduce.")
    assert len(lines) == 4 + len(values["names"])
    for row in values["rows"].values():
        assert [one.seconds for one in row] == sorted(one.seconds for one in row)
        assert row[0].name != row[-1].name, "few bytes go another way than many"


def test_overlap(play: Play) -> None:
    values, printed = play("overlap")
    assert re.search(r"one after the other [\d.]+ ms, both at once [\d.]+ ms: [\d.]+ times as fast", printed)
    assert values["after"] > 0
    assert values["both"] > 0
    assert all(0 <= result["ready first"] <= values["REPEATS"] for result in values["results"])


def test_point_to_point(play: Play) -> None:
    _, printed = play("point_to_point")
    lines = re.findall(r"rank (\d): gradient up to (\S+), (\S+) from that of the whole model", printed)
    assert [rank for rank, _, _ in lines] == ["0", "1", "2", "3"]
    assert all(float(largest) > 1 and float(apart) < 1e-4 for _, largest, apart in lines)


def test_sub_groups(play: Play) -> None:
    values, printed = play("sub_groups")
    trace = int((values["a"] @ values["b"]).trace())
    rows, columns = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    said = "row {}, column {}, its block is right, trace {}"
    ends = [said.format(rows[k // 2], columns[k % 2], trace if k in (0, 3) else None) for k in range(4)]
    ranks = [f"rank {rank}: {end}" for rank, end in enumerate(ends)]
    assert printed.splitlines() == [*ranks, f"the trace of the whole product is {trace}"]


def test_demo_end_to_end() -> None:
    app = typer.Typer()
    app.command()(demo)
    done = CliRunner().invoke(app, ["--steps", "11", "--ranks", "2"], catch_exceptions=False, env={"COLUMNS": "140"})
    assert done.exit_code == 0, done.output
    printed = done.output
    assert printed.startswith("Starting 2 processes.\n")
    assert "training:" not in printed, "without a terminal it shows what it has done only"
    for collective in ("reduce", "all_reduce", "scatter", "gather", "all_gather", "broadcast"):
        assert re.search(rf"│ {collective} +│ before", printed)
    sums = re.findall(r"│ after +│ ([\d ]+?) +│ ([\d ]+?) +│", printed)
    assert ("3 30", "2 20") in sums  # reduce: rank 1 keeps what it had
    assert ("3 30", "3 30") in sums  # all_reduce
    assert re.search(r"│ steps +│ 11 +│ 11 ", printed)
    assert "unisono: the models of all ranks have the same bits." in printed
    apart = re.search(r"at most (\S+) apart", printed)
    assert apart
    assert float(apart[1]) < 1e-3
