"""The torus of any number of dimensions."""

from __future__ import annotations

from math import prod

import numpy as np

from ....base.errors import ArgumentError
from ...hosts import Hosts
from .network import Bundle, Hardware, Ints, Network
from .switched import place_of


def torus(hosts: Hosts, hardware: Hardware, *, sides: tuple[int, ...] = ()) -> Network:
    """Hosts in a grid whose rows are rings, with a cable to each neighbour; hosts pass messages on.

    sides: their product is the number of hosts; by default three that are about equal. A message goes the shorter way
    round, dimension by dimension; where both are as long, those of even hosts go up.

    source: Dally and Seitz 1987 (dimension order); Adiga and others 2005 (Blue Gene/L)
    """
    place, n = place_of(hosts), len(hosts.members)
    sides = sides or sides_of(n)
    if prod(sides) != n or min(sides) < 1:
        raise ArgumentError(f"torus:{'x'.join(map(str, sides))} has {prod(sides)} hosts, not {n}")
    stride = np.cumprod((1, *sides))
    at = [np.arange(n) // stride[d] % side for d, side in enumerate(sides)]
    around = [np.tile(np.arange(side), 3) * stride[d] for d, side in enumerate(sides)]

    def path(src: Ints, dst: Ints) -> Ints:
        a, b = place[src], place[dst]
        rows = []
        for d, side in enumerate(sides):
            x, y = at[d][a], at[d][b]
            up = (y - x) % side
            upwards = (2 * up < side) | ((2 * up == side) & (a % 2 == 0))
            steps = np.where(upwards, up, side - up)
            way = np.where(upwards, 1, -1)
            # The host at 0 of this ring, as dimensions before are at their goal, and those behind not yet.
            first = a // (stride[d] * side) * (stride[d] * side) + b % stride[d] + (2 * d + ~upwards) * n
            for step in range(int(steps.max(initial=0))):
                rows.append(np.where(steps > step, first + around[d][x + side], -1))
                x += way
        return np.stack(rows) if rows else np.zeros((0, len(src)), np.int64)

    def ends(d: int, way: int, host: int) -> tuple[str, str]:
        here = host // int(stride[d]) % sides[d]
        return f"host{host}", f"host{host + ((here + way) % sides[d] - here) * int(stride[d])}"

    fabric = tuple(
        Bundle(n, hardware.between.bytes_per_s, lambda host, d=d, way=way: ends(d, way, host))  # type: ignore[misc]
        for d in range(len(sides))
        for way in (1, -1)
    )
    return Network(f"torus:{'x'.join(map(str, sides))}", hardware, place, fabric, path)


def sides_of(hosts: int, dimensions: int = 3) -> tuple[int, ...]:
    """Sides of a grid of so many hosts, as equal as they can be."""
    if dimensions == 1:
        return (hosts,)
    side = next(d for d in range(round(hosts ** (1 / dimensions)), 0, -1) if hosts % d == 0)
    return (*sides_of(hosts // side, dimensions - 1), side)
