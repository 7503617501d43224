"""The fastest algorithm for a collective, for many sizes and numbers of hosts, as a table of letters.

The times are predicted: no message is sent. Only algorithms that a call can choose are compared.

    python examples/best_map.py
"""

from __future__ import annotations

from string import ascii_uppercase

import unisono
from unisono.base.link import Link
from unisono.base.units import format_bytes, format_seconds
from unisono.schedule import Hosts
from unisono.schedule.simulate import Hardware, Network, Price, candidates, price

COLLECTIVE, LINK = "all_reduce", Link.parse("100Gbit,5us")
SHAPES = [Hosts.parse(f"{count}x4") for count in (16, 8, 4, 2)]
SIZES = [8 << 3 * k for k in range(10)]


def best(hosts: Hosts) -> list[Price]:
    """The fastest algorithm on these hosts, for each size."""
    where, config = Network(hosts, Hardware(between=LINK)), unisono.Config(link=LINK)
    found = []
    for size in SIZES:
        able = [way for way in candidates(COLLECTIVE, hosts, size, config=config) if not way.why_not + way.priced_only]
        found.append(min((price(way, where, size) for way in able), key=lambda one: one.seconds))
    return found


if __name__ == "__main__":
    rows = {hosts: best(hosts) for hosts in SHAPES}
    names = list(dict.fromkeys(one.name for row in reversed(rows.values()) for one in row))
    print(f"{COLLECTIVE} over {LINK}")
    print(" " * 9 + "".join(f"{format_bytes(size):>9}" for size in SIZES))
    for hosts, row in rows.items():
        letters = "".join(f"{ascii_uppercase[names.index(one.name)]:>9}" for one in row)
        print(f"{hosts.ranks:3} ranks{letters}")
    for letter, name in zip(ascii_uppercase, names, strict=False):
        least = min(one.seconds for row in rows.values() for one in row if one.name == name)
        print(f"{letter}  {name} (from {format_seconds(least)})")
