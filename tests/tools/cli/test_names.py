"""A name is one table for `explain`, `simulate` and a call; how tables are counted and proved; the console's width."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from typer.testing import CliRunner

import unisono
from unisono.base.errors import ArgumentError
from unisono.schedule import Hosts
from unisono.schedule.algorithms import CATALOGUE, find
from unisono.schedule.algorithms.over_hosts import CORES
from unisono.schedule.choose.over_hosts import choose_spanning, why_priced_only
from unisono.schedule.simulate import Candidate, candidates, messages, network, price, ready
from unisono.tools.cli import app
from unisono.tools.cli.explain import reason
from unisono.tools.cli.shared import target as facts_module
from unisono.tools.cli.shared.costs_over_hosts import find_call
from unisono.tools.cli.shared.printing import console
from unisono.tools.cli.shared.target import COLLECTIVES, Costs, bound_costs, facts, find_target

SHAPES = ["2x2", "8x8", "3+1", "4x1"]
SIZES = [8, 16 << 20]


def by_a_call(name: str, hosts: Hosts, nbytes: int) -> str:
    """The name of the table that a call uses; "" if it cannot choose this algorithm."""
    collective, _, short = name.partition(".")
    if collective not in CORES or why_priced_only(find(collective, name)):
        return ""
    ways = {choose_spanning(collective, nbytes, hosts, algorithm=way).name for way in (name, short)}
    assert len(ways) == 1, "the short and the full name are one"
    return ways.pop()


def by_explain(name: str, hosts: Hosts, nbytes: int) -> str:
    """The same, as the command says it."""
    collective, _, short = name.partition(".")
    said = set()
    for words in ({"name": name}, {"name": collective, "algorithm": short}):
        found = find_call(**words, hosts=hosts, nbytes=nbytes)
        if found:
            assert not found.priced_only
            said.add(found.call.name)
        else:
            target = find_target(**words, ranks=hosts.ranks, nbytes=nbytes).algorithm
            said.add("" if why_priced_only(target) else target.full_name)
    assert len(said) == 1
    return said.pop()


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_explain_simulate_and_calls_mean_the_same_table(collective: str, shape: str, nbytes: int) -> None:
    hosts = Hosts.parse(shape)
    priced = list(candidates(collective, hosts, nbytes))
    able: dict[str, Candidate] = {}
    for some in priced:
        if not some.priced_only:
            assert some.algorithm not in able, "an algorithm is one choice"
            able[some.algorithm] = some
    assert len({some.name for some in priced}) == len(priced)
    names = [a.full_name for a in CATALOGUE.values() if a.collective == collective and a.allows(hosts.ranks)]
    for name in names:
        chosen = by_a_call(name, hosts, nbytes)
        assert chosen == by_explain(name, hosts, nbytes)
        one = able.get(name.partition(".")[2])
        assert chosen == (one.name if one else "")
    assert {some.algorithm for some in priced} == {name.partition(".")[2] for name in names}
    if collective in CORES:
        whole = find_call(collective, hosts, nbytes=nbytes)
        assert whole is not None
        assert whole.call.name == choose_spanning(collective, nbytes, hosts).name
        assert whole.call.name in {some.name for some in able.values()}, "what calls choose by themselves has a price"


@pytest.mark.parametrize("shape", ["2x2", "3+1", "4x1"])
@pytest.mark.parametrize("collective", CORES)
def test_one_name_is_one_table(collective: str, shape: str) -> None:
    """What is priced moves what the table moves that a call uses."""
    hosts = Hosts.parse(shape)
    for nbytes in SIZES:
        for some in candidates(collective, hosts, nbytes):
            if some.priced_only or collective == "barrier":
                continue
            chosen = choose_spanning(collective, nbytes, hosts, algorithm=some.algorithm)
            call = chosen.make(collective, hosts, 0)
            assert call.schedule().name == call.name == some.name
            moved = [sum(part.share.sum() for part in made) for made in (some.make(), messages(call.schedule()))]
            assert np.isclose(*moved), some.name


@pytest.mark.parametrize("shape", ["2x2", "3+1", "4x1"])
def test_calls_do_use_it(on_hosts: Callable[[str], unisono.World], shape: str) -> None:
    def work() -> dict[str, str]:
        import torch

        group = unisono.init()
        for name in names:
            unisono.all_reduce(torch.ones(2), algorithm=name)
        plans = {key.algorithm: plan for key, plan in group.plans.items()}
        return {name: plan.record.algorithm for name, plan in plans.items() if name in names}

    hosts = Hosts.parse(shape)
    names = [a.full_name for a in CATALOGUE.values() if a.collective == "all_reduce" and a.allows(hosts.ranks)]
    wanted = {name: f"{by_a_call(name, hosts, 8)} over {hosts.text}" for name in names}
    assert on_hosts(shape).run(work) == [wanted] * hosts.ranks


def test_what_cannot_be_chosen_is_said_to_be_only_a_price_and_comes_last() -> None:
    words = ["all_reduce", "--hosts", "4x4"]
    found = json.loads(CliRunner().invoke(app, ["simulate", *words, "--json"]).stdout)["prices"]
    only = [bool(one["priced_only"]) for one in found]
    assert only == sorted(only)
    assert {one["name"] for one in found if one["priced_only"]} >= {"all_reduce.ring of all ranks"}
    printed = CliRunner().invoke(app, ["simulate", *words]).stdout
    able, _, rest = printed.partition("priced only: a call cannot choose these over hosts")
    assert "of all ranks" not in able
    assert "ring of all ranks" in rest
    best = re.search(r'^(\S.*?) \(algorithm="(\w+)"\): ', able, re.MULTILINE)
    assert best
    explained = CliRunner().invoke(app, ["explain", *words, "--algorithm", best[2], "--no-rounds"]).stdout
    assert explained.startswith(f"all_reduce.{best[1]} · 16 ranks")


def test_a_price_of_what_a_call_chooses_has_its_segments() -> None:
    hosts, link = Hosts.parse("4x2"), None
    for nbytes in (1 << 10, 64 << 20):
        chosen = choose_spanning("broadcast", nbytes, hosts, link, "circulant")
        some = next(one for one in candidates("broadcast", hosts, nbytes) if one.name == chosen.name)
        assert not some.priced_only
        where = network("two-levels", hosts)
        assert price(ready(some, where), where, nbytes).name == chosen.name


def test_an_unknown_name_is_refused_by_all() -> None:
    hosts = Hosts.parse("2x2")
    with pytest.raises(ArgumentError, match="Did you mean 'ring'"):
        choose_spanning("all_reduce", 8, hosts, algorithm="rnig")
    with pytest.raises(ArgumentError, match="Did you mean 'ring'"):
        find_call("all_reduce.rnig", hosts)


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
