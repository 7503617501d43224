"""Each benchmark runs with few figures, and writes its tables. No test looks at a time."""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.cluster import why_not

ROOT = Path(__file__).parents[2]
SHORT = "--seconds 0.01 --rounds 1 --no-mpi --sizes 8"
OURS = "unisono", "Gloo"
LATE = ("500 µs late, sleeping", "3 ms late, sleeping", "20 ms late, sleeping", "20 ms late, computing")


def tables(tmp_path: Path, command: str) -> list[Any]:
    """The tables of a run."""
    output = tmp_path / "new" / "run.json"
    words = [sys.executable, "-m", *f"benchmarks.{command} --output {output}".split()]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[Any] = json.loads(output.read_text())["tables"]
    return found


FIRST = f"collectives {SHORT} --only all_reduce,all_to_all"
ROWS: dict[str, tuple[tuple[str, ...], set[Any]]] = {
    FIRST: (
        ("ranks", "call", "contender"),
        {*product([2], ("all_reduce", "all_to_all"), (*OURS, "unisono shared")), (2, "all_reduce", "memcpy")},
    ),
    f"collectives {SHORT} --late --busy 1": (("late rank", "background processes"), {*product(LATE, [1])}),
    f"collectives {SHORT} --only all_reduce --hosts 2x1 --rates none,1gbit": (
        ("hosts", "link", "contender"),
        {*product(["2x1"], ("no limit", "1gbit"), OURS)},
    ),
    "serving --turns 1 --ranks 2 --busy 0 --sizes 8KiB --styles none": (
        ("call", "contender"),
        {*product(("all_reduce", "all_gather_into_tensor"), (*OURS, "without communication"))},
    ),
    "first_call --turns 1 --first 0": (("part", "contender"), {*product(("all", "wall"), OURS)}),
    "recovery --steps 12 --step-s 0.5 --every-s 2": (
        ("library", "failures", "weights of the ranks"),
        {*product(OURS, [2], ["equal"])},
    ),
}
"""Command -> headings of its first table, and the different cells below them."""


@pytest.mark.parametrize("command", [pytest.param(one, marks=[pytest.mark.long] * (one != FIRST)) for one in ROWS])
def test_first_table_has_all_rows(tmp_path: Path, command: str) -> None:
    """Results are checked, so the commands also tell right from wrong values."""
    if "--hosts" in command and why_not():
        pytest.skip(why_not())
    if "recovery" in command and not hasattr(torch.distributed, "_reconfigure"):
        pytest.skip("this torch cannot reconfigure groups")
    table, (headings, cells) = tables(tmp_path, command)[0], ROWS[command]
    columns = [table["headings"].index(heading) for heading in headings]
    found = {tuple(row[column] for column in columns) for row in table["rows"]}
    assert found - {("all_reduce", "DeepSpeed")} == cells  # which is an extra


@pytest.mark.long
def test_calls_of_torch_distributed(tmp_path: Path) -> None:
    calls, *_ = tables(tmp_path, "torch_backend --turns 1 --sizes 8 --steps 1 --kinds 0,1,2")
    assert len({row[calls["headings"].index("call")] for row in calls["rows"]}) == 15


@pytest.mark.long
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_steps_over_hosts(tmp_path: Path) -> None:
    calls, steps, *_ = tables(tmp_path, "torch_backend --hosts 2x1 --steps 1 --kinds 2")
    assert calls["rows"] == []  # calls are measured on one host
    assert {row[3] for row in steps["rows"]} == {*OURS, "without communication"}


@pytest.mark.long
def test_survivors_of_deaths_have_errors(tmp_path: Path) -> None:
    """Only Gloo's do not name the killed rank."""
    deaths, errors, *_ = tables(tmp_path, "deaths --trials 1")
    assert len(deaths["rows"]) == 7
    assert [row[3] for row in errors["rows"]] == [0 if row[1] == "Gloo" else 3 for row in errors["rows"]]


@pytest.mark.long
def test_supported_calls(tmp_path: Path) -> None:
    """Ours takes every dtype; Gloo does not, and its broadcast of a view writes other elements."""
    calls, dtypes, views = tables(tmp_path, "supported_calls --only broadcast")
    assert [row[calls["headings"].index("call")] for row in calls["rows"]] == ["broadcast"]
    assert ["broadcast of every second element", "right", "wrong"] in views["rows"]
    assert {cell for row in dtypes["rows"] for cell in row[2:]} == {"right", "raises"}
