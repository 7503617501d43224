"""`unisono compare`: the counts of `explain`, side by side."""

from __future__ import annotations

import re

from typer.testing import CliRunner

from unisono.tools.cli import app


def compare(*words: str) -> str:
    result = CliRunner().invoke(app, ["compare", *words], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output + result.stderr
    return result.stdout


def rows(printed: str) -> dict[str, list[str]]:
    cells = [re.split(r" {2,}", line.strip()) for line in printed.splitlines() if line.strip()]
    return {first: rest for first, *rest in cells}


def test_costs_stand_side_by_side() -> None:
    table = rows(compare("ring", "tree", "one_shot", "--ranks", "8", "--bytes", "16MiB"))
    assert table["ring"] == ["tree", "one_shot", "lower bound"]
    assert table["rounds"] == ["14", "6", "1", "3"]
    assert table["messages a rank sends"] == ["14", "3", "7"]
    assert table["a rank sends ≤"] == ["14/8 m = 28 MiB", "3 m = 48 MiB", "7 m = 112 MiB", "14/8 m = 28 MiB"]
    assert table["bits"] == ["the same on every rank"] * 3
    assert table["proved"] == ["yes"] * 3


def test_other_collectives_and_many_ranks() -> None:
    table = rows(compare("all_gather.ring", "all_gather.bruck", "--ranks", "1000"))
    assert table["rounds"] == ["999", "10", "10"]
    assert "bits" not in table
    left_out = rows(compare("scan.linear", "scan.direct", "--ranks", "100000"))
    assert left_out["a rank receives ≤"][1] == "?"
