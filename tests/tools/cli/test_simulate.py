"""`unisono simulate`: what it prints. A name is one table for it, for `explain` and for a call."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.schedule.exchange.files import FILES
from tests.support.say import say
from unisono.base.units import format_seconds
from unisono.schedule import Hosts
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.catalogue import COLLECTIVES
from unisono.schedule.algorithms.over_hosts import CORES
from unisono.schedule.choose.over_hosts import choose_spanning
from unisono.schedule.simulate import candidates, messages
from unisono.tools.cli.shared.costs_over_hosts import find_call
from unisono.tools.cli.shared.target import find_target

UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
CELLS = re.compile(r"^(\S.*?)  +([\d.]+) (s|ms|µs|ns)  +\w+ \d+%(?:  +(\w+ ?\w*))?", re.MULTILINE)


def prices(shown: str) -> dict[str, tuple[float, str]]:
    """The rows of a table: the name of each algorithm, its seconds, and the busiest link."""
    return {name: (float(number) * UNITS[unit], link) for name, number, unit, link in CELLS.findall(shown)}


def price(words: str) -> float:
    return min(seconds for seconds, _ in prices(say(f"simulate {words}")).values())


def test_algorithms_come_best_first() -> None:
    seen = say("simulate all_reduce --hosts 4x2 --bytes 1MiB")
    assert seen.splitlines()[:2] == [
        "all_reduce · 8 ranks on 4 hosts (4x2) · 1 MiB",
        "between hosts 10 Gbit/s, 100 µs; between ranks of a host 40 Gbit/s, 1 µs; a rank adds 10 GB/s",
    ]
    able, others = map(prices, seen.split("priced only: a call cannot choose these over hosts"))
    for found in (able, others):
        assert list(found) == sorted(found, key=lambda name: found[name][0])
    assert "spanning circulant ×2" in able
    assert {"ring of all ranks", "spanning circulant ×1"} <= {*others}
    best = next(iter(able))
    assert re.search(
        rf'^{best} \(algorithm="\w+"\): .* transfers .* = {format_seconds(able[best][0])}, for', seen, re.M
    )


def test_slower_hosts_and_late_ranks_cost() -> None:
    plain = price("all_gather.ring --hosts 4x1")
    assert price("all_gather.ring --hosts 4x1 --link 100Gbit,1us") < plain / 3
    assert price("all_gather.ring --hosts 4x1 --late-rank 1:500ms") > plain + 0.4
    ((shared, link),) = prices(say("simulate all_gather.pat --hosts 2x4:round_robin")).values()
    assert shared > 2 * price("all_gather.pat --hosts 8x1"), "all ranks of a host send through one port"
    assert "host" in link
    assert price("all_gather.direct --hosts 1x4 --inside 1GB") == pytest.approx(3 / 4 * (16 << 20) / 1e9, rel=0.1)
    rooted = prices(say("simulate broadcast --hosts 2+1 --root 2"))
    assert {"knomial", "spanning binomial ×1"} <= {*rooted}


@pytest.mark.parametrize("nbytes", [8, 16 << 20])
@pytest.mark.parametrize("shape", ["2x2", "8x8", "3+1", "4x1"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_commands_and_calls_mean_the_same_table(collective: str, shape: str, nbytes: int) -> None:
    """And what is priced moves what the table moves that a call uses."""
    hosts = Hosts.parse(shape)
    priced = list(candidates(collective, hosts, nbytes))
    able = {some.algorithm: some for some in priced if not some.priced_only}
    assert len(able) == sum(not some.priced_only for some in priced), "an algorithm is one choice"
    assert len({some.name for some in priced}) == len(priced)
    names = [one.name for one in CATALOGUE.values() if one.collective == collective and one.allows(hosts.ranks)]
    assert {some.algorithm for some in priced} == {*names}
    for short in names:
        name = f"{collective}.{short}"
        found, target = find_call(name, hosts, nbytes=nbytes), find_target(name, hosts.ranks, nbytes=nbytes)
        called = {choose_spanning(collective, nbytes, hosts, algorithm=way).name for way in (name, short)}
        assert called == {found.table.name if found else target.algorithm.full_name}
        assert called == {able[short].name if short in able else ""}
    if collective in CORES:
        whole = find_call(collective, hosts, nbytes=nbytes)
        assert whole is not None
        assert whole.table.name == choose_spanning(collective, nbytes, hosts).name
        assert whole.table.name in {some.name for some in able.values()}, "what calls choose by themselves has a price"
    for some in able.values() if collective in CORES and collective != "barrier" and shape != "8x8" else ():
        table = choose_spanning(collective, nbytes, hosts, algorithm=some.algorithm).make(collective, hosts, 0)
        assert table.name == some.name
        assert np.isclose(*(sum(part.share.sum() for part in made) for made in (some.make(), messages(table))))


def test_files_have_a_price(tmp_path: Path) -> None:
    path = tmp_path / "ring.xml"
    path.write_text(FILES["fused ring of 4"])
    mine, ours = (say(f"simulate {name} --hosts 4x1 --link 1Gbit") for name in (path, "all_reduce.ring"))
    assert f'ring.xml (algorithm="{path}"): ' in mine
    assert mine.split("): ")[-1] == ours.split("): ")[-1]
