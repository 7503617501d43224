"""`unisono compare`: the counts of `explain`, side by side.

How algorithms are counted and proved for any number of ranks.
The console of the commands: how wide it is where there is no terminal.
"""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from unisono.schedule.algorithms import CATALOGUE
from unisono.tools.cli import app
from unisono.tools.cli.explain import reason
from unisono.tools.cli.shared import target as facts_module
from unisono.tools.cli.shared.printing import console
from unisono.tools.cli.shared.target import Costs, bound_costs, facts, find_target


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


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_way_of_counting_gives_the_same_costs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = find_target(name, 16)
    exact = facts(target)
    assert exact.costs is not None
    monkeypatch.setattr(facts_module, "MOST_EXACT", 8)
    quick = facts(target)
    assert quick.costs == exact.costs
    assert quick.proof is not None or "left out" in quick.note
    monkeypatch.setattr(facts_module, "_MOST_ROWS", -1)
    stated = facts(target)
    if stated.proof is None:
        assert stated.costs is not None
        check(stated.costs, exact.costs)


def check(stated: Costs, counted: Costs) -> None:
    for field in ("rounds", "sent", "received"):
        says, is_so = getattr(stated, field), getattr(counted, field)
        if says is not None:
            assert says >= is_so if stated.bound else says == pytest.approx(is_so)


@pytest.mark.parametrize(("collective", "sent", "received"), [("gather", 1 / 4, 3 / 4), ("scatter", 3 / 4, 1 / 4)])
def test_only_the_root_has_the_blocks_of_all(collective: str, sent: float, received: float) -> None:
    bounds = bound_costs(collective, 4)
    assert (bounds.sent, bounds.received) == (sent, received)
    assert (bound_costs(collective, 1).sent, bound_costs(collective, 1).received) == (0, 0)


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("133", 133), ("", 80), ("wide", 80)])
def test_columns_are_honoured_without_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert console().width == width


def test_a_bound_counts_in_the_units_that_the_user_chose() -> None:
    assert "2 × 3 × 250 MB = 1.5 GB, or 6/4" in reason("all_reduce", 4, 10**9, like="1GB")
    assert "2 × 3 × 238 MiB = 1.4 GiB, or 6/4" in reason("all_reduce", 4, 10**9)
