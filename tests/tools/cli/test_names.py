"""A name is one table for `explain`, `simulate` and a call; how tables are counted and proved; the console's width."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import unisono
from unisono.schedule import Hosts
from unisono.schedule.algorithms import CATALOGUE, find
from unisono.schedule.algorithms.over_hosts import CORES
from unisono.schedule.choose.over_hosts import choose_spanning, why_priced_only
from unisono.schedule.simulate import Candidate, candidates, messages, network, price, ready
from unisono.tools.cli.shared import target as facts_module
from unisono.tools.cli.shared.costs_over_hosts import find_call
from unisono.tools.cli.shared.target import COLLECTIVES, Costs, facts, find_target

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


def test_a_price_of_what_a_call_chooses_has_its_segments() -> None:
    hosts, link = Hosts.parse("4x2"), None
    for nbytes in (1 << 10, 64 << 20):
        chosen = choose_spanning("broadcast", nbytes, hosts, link, "circulant")
        some = next(one for one in candidates("broadcast", hosts, nbytes) if one.name == chosen.name)
        assert not some.priced_only
        where = network("two-levels", hosts)
        assert price(ready(some, where), where, nbytes).name == chosen.name


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
