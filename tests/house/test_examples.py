"""Each example and the demo is run as a script, and prints what must come out."""

import re
import runpy
from pathlib import Path

import pytest
import typer
from examples.demo.__main__ import demo
from typer.testing import CliRunner

from tests.support.programs import run_python

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTS: dict[str, tuple[str, float]] = {
    "six_collectives": (
        """rank 0 rank 1 rank 2 rank 3
        reduce before 1 10 100 1000 after 1111 10 100 1000
        all_reduce before 1 10 100 1000 after 1111 1111 1111 1111
        scatter before 5 6 7 8 · · · after 5 6 7 8
        gather before 1 10 100 1000 after 1 10 100 1000 · · ·
        all_gather before 1 10 100 1000 after 1 10 100 1000 1 10 100 1000 1 10 100 1000 1 10 100 1000
        broadcast before 1 10 100 1000 after 1 1 1 1""",
        0,
    ),
    "data_parallel": ("step 0: loss 4.8… with one rank, … step 50: loss 2.… with one rank, … at most # apart", 1e-4),
    "tensor_parallel": (
        """by_columns: 4 ranks with (64, 12) of (64, 48) weights each from … outputs at most # apart, gradients #
        by_rows: 4 ranks with (16, 48) of (64, 48) weights each from … outputs at most # apart, gradients #""",
        1e-10,
    ),
    "zero_optimizer": (
        """18144 weights: Adam keeps 36288 numbers on every rank, sharded 9072
        all_reduce: a rank sends 1.5 psi (paper: 2 psi), 108,864 bytes, per step
        reduce_scatter + all_gather: a rank sends 1.5 psi (paper: 2 psi), 108,864 bytes, per step
        weights at most # apart after 30 steps""",
        1e-6,
    ),
    "own_algorithm": (
        """──→ copies ─+→ adds …
        Refused: forgetful is not a correct all_reduce: rank 0 ends without the parts of ranks 1, 2 of chunk 0 …
        rounds: 4, at best 2; the busiest rank sends 2.0 of the vector
        [[111.0, 222.0], [111.0, 222.0], [111.0, 222.0]]""",
        0,
    ),
    "overlap": ("one after the other … ms, both at once … ms: … times as fast in … of 15 cases the sum was ready", 0),
    "point_to_point": (
        """rank 0: gradient up to …, # from that of the whole model rank 1: gradient up to …, # from …
        rank 2: gradient up to …, # from … rank 3: gradient up to …, # from that of the whole model""",
        1e-4,
    ),
    "sub_groups": (
        """rank 0: row [0, 1], column [0, 2], its block is right, trace 560
        rank 1: row [0, 1], column [1, 3], its block is right, trace None
        rank 2: row [2, 3], column [0, 2], its block is right, trace None
        rank 3: row [2, 3], column [1, 3], its block is right, trace 560
        the trace of the whole product is 560""",
        0,
    ),
    "best_map": ("all_reduce over 100 Gbit/s, 5 µs … 64 ranks … 32 ranks … 16 ranks … 8 ranks … A all_reduce.", 0),
}
"""Example -> parts of what it prints, with single spaces: "…" is anything, "#" a number that is less than this."""
LONG = ["best_map"]
DEMO = """Starting 2 processes. … │ reduce │ before … │ after │ 3 30 │ 2 20 │ … │ all_reduce │ before …
    │ after │ 3 30 │ 3 30 │ … │ scatter │ before … │ gather │ before … │ all_gather │ before … │ broadcast │ before …
    │ steps │ 11 │ 11 │ … unisono: the models of all ranks have the same bits. … at most # apart"""


def check(printed: str, parts: str, most: float) -> None:
    escaped = re.escape(" ".join(parts.split()))
    pattern = escaped.replace(r"\ …\ ", ".*").replace("…", ".*").replace(r"\#", r"([\d.e-]+)")
    found = re.search(pattern, " ".join(printed.split()))
    assert found, printed
    assert all(float(number) < most for number in found.groups())


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in PRINTS])
def test_example_prints_what_must_come_out(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    check(capsys.readouterr().out, *PRINTS[name])


def test_demo_end_to_end() -> None:
    (app := typer.Typer()).command()(demo)
    done = CliRunner().invoke(app, ["--steps", "11", "--ranks", "2"], catch_exceptions=False, env={"COLUMNS": "140"})
    assert done.exit_code == 0, done.output
    assert "training:" not in done.output, "without a terminal it shows what it has done only"
    check(done.output, DEMO, 1e-3)


@pytest.mark.long
def test_averages_of_models_know_more(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "averaging_models.py"), run_name="__main__")
    rounds = [[float(one) for one in re.findall(r"([\d.]+)%", line)] for line in capsys.readouterr().out.splitlines()]
    assert [len(numbers) for numbers in rounds] == [5] * 5
    *alone, average = rounds[-1]
    assert len(set(alone)) > 1
    assert average > max(*alone, rounds[0][-1])
    assert rounds[0][-1] > 15, "a space as every guess is right as often"


@pytest.mark.long
def test_data_parallel_under_torchrun() -> None:
    words = "torch.distributed.run", "--standalone", "--nproc-per-node", 2, EXAMPLES / "data_parallel.py"
    done = run_python("-m", *words)
    assert re.fullmatch(r"2 ranks: loss 4\.\d+ falls to [23]\.\d+\n", done.stdout), done.stderr
