"""`unisono simulate`: what it prints. A name is one table for it, for `explain` and for a call."""

import re
from collections.abc import Sequence
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


def prices(lines: Sequence[str]) -> dict[str, tuple[float, str]]:
    """The rows of a table: the name of each algorithm, its seconds, and the busiest link."""
    rows = [re.split(r"  +", line.strip()) for line in lines]
    took = {name: takes.split() for name, takes, *_ in rows}
    return {row[0]: (float(took[row[0]][0]) * UNITS[took[row[0]][1]], row[-1]) for row in rows}


def price(words: str) -> tuple[float, str]:
    """The seconds of the best algorithm, and its busiest link."""
    return next(iter(prices(say(f"simulate {words}").splitlines()[4:5]).values()))


def test_algorithms_come_best_first() -> None:
    seen = say("simulate all_reduce --hosts 4x2 --bytes 1MiB")
    lines = seen.splitlines()
    assert lines[0] == "all_reduce · 8 ranks on 4 hosts (4x2) · 1 MiB"
    assert lines[1] == "between hosts 10 Gbit/s, 100 µs; between ranks of a host 40 Gbit/s, 1 µs; a rank adds 10 GB/s"
    end, only = lines.index("", 4), lines.index("priced only: a call cannot choose these over hosts")
    able, others = prices(lines[4:end]), prices(lines[only + 2 :])
    for found in (able, others):
        assert list(found) == sorted(found, key=lambda name: found[name][0])
    assert "spanning circulant ×2" in able
    assert {"ring of all ranks", "spanning circulant ×1"} <= {*others}
    best = next(iter(able))
    assert lines[end + 1].startswith(f'{best} (algorithm="')
    assert lines[end + 1].endswith(f"= {format_seconds(able[best][0])}, for the rank that ends last")
    assert "transfers" in seen


def test_one_algorithm_and_what_slows_it() -> None:
    plain, fast, late, alone = (
        price(words)[0]
        for words in (
            "all_gather.ring --hosts 4x1", "all_gather.ring --hosts 4x1 --link 100Gbit,1us",
            "all_gather.ring --hosts 4x1 --late-rank 1:500ms", "all_gather.pat --hosts 8x1",
        )
    )  # fmt: skip
    assert fast < plain / 3
    assert late > plain + 0.4
    shared, link = price("all_gather.pat --hosts 2x4:round_robin")
    assert shared > 2 * alone, "all ranks of a host send through one port"
    assert "host" in link
    one, _ = price("all_gather.direct --hosts 1x4 --inside 1GB")
    assert one == pytest.approx(3 / 4 * (16 << 20) / 1e9, rel=0.1)
    rooted = say("simulate broadcast --hosts 2+1 --root 2")
    assert "\nknomial " in rooted
    assert "\nspanning binomial ×1 " in rooted


SHAPES = ["2x2", "8x8", "3+1", "4x1"]
SIZES = [8, 16 << 20]


def by_a_call(name: str, hosts: Hosts, nbytes: int) -> str:
    """The name of the table that a call uses."""
    collective, _, short = name.partition(".")
    ways = {choose_spanning(collective, nbytes, hosts, algorithm=way).name for way in (name, short)}
    assert len(ways) == 1, "the short and the full name are one"
    return ways.pop()


def by_explain(name: str, hosts: Hosts, nbytes: int) -> str:
    """The same, as the command says it."""
    found = find_call(name, hosts, nbytes=nbytes)
    return found.table.name if found else find_target(name, hosts.ranks, nbytes=nbytes).algorithm.full_name


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
    names = [a.full_name for a in CATALOGUE.values() if a.collective == collective and a.allows(hosts.ranks)]
    for name in names:
        chosen, one = by_a_call(name, hosts, nbytes), able.get(name.partition(".")[2])
        assert chosen == by_explain(name, hosts, nbytes)
        assert chosen == (one.name if one else "")
    assert {some.algorithm for some in priced} == {name.partition(".")[2] for name in names}
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
