"""How algorithms are counted and proved for any number of ranks.
The console of the commands: how wide it is where there is no terminal.
"""

from __future__ import annotations

import pytest

from unisono.schedule.algorithms import CATALOGUE
from unisono.tools.cli.explain import reason
from unisono.tools.cli.shared import target as facts_module
from unisono.tools.cli.shared.printing import console
from unisono.tools.cli.shared.target import Costs, bound_costs, facts, find_target


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
