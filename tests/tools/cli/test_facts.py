"""How algorithms are counted and proved for any number of ranks."""

from __future__ import annotations

import pytest

from unisono.schedule.algorithms import CATALOGUE
from unisono.tools.cli.shared import facts as facts_module
from unisono.tools.cli.shared.facts import Costs, bound_costs, facts
from unisono.tools.cli.shared.target import find_target


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
