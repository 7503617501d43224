"""Networks by name, as a user writes them: `flat`, `fat-tree:k=8,oversubscription=2`, `torus:4x4x2`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ....base.errors import ArgumentError
from ...hosts import Hosts
from .dragonfly import dragonfly
from .fat_tree import fat_tree
from .network import Hardware, Network
from .switched import flat, rails, two_levels
from .torus import torus

NETWORKS: Mapping[str, Callable[..., Network]] = {
    "flat": flat,
    "two-levels": two_levels,
    "rails": rails,
    "fat-tree": fat_tree,
    "torus": torus,
    "dragonfly": dragonfly,
}
"""Name -> the function that makes it, of hosts, a hardware, and what may be written behind the name."""

_KINDS: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "tuple[int, ...]": lambda text: tuple(map(int, text.split("x"))),
}


def network(text: str, hosts: Hosts, hardware: Hardware | None = None) -> Network:
    """The network of that name for these hosts. Raises ArgumentError.

    text: a name of `NETWORKS`, and behind a colon what it takes: `fat-tree:k=8,oversubscription=2`, `torus:4x4x2`.
    """
    name, _, rest = text.strip().partition(":")
    if name not in NETWORKS:
        raise ArgumentError(f"{name!r} is no network; there are: {', '.join(NETWORKS)}")
    make = NETWORKS[name]
    takes = {key: p for key, p in inspect.signature(make).parameters.items() if p.kind is p.KEYWORD_ONLY}
    known = f"{name} takes {', '.join(takes) or 'nothing'}"
    given: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            key, value = next(iter(takes), ""), key
        if key.strip() not in takes or key.strip() in given:
            raise ArgumentError(f"network {text!r}: {part!r} is not known here; {known}")
        try:
            given[key.strip()] = _KINDS[takes[key.strip()].annotation](value.strip())
        except ValueError:
            raise ArgumentError(f"network {text!r}: {value!r} is no value of {key}; {known}") from None
    if given.get("oversubscription", 1.0) <= 0:
        raise ArgumentError(f"network {text!r}: oversubscription must be above 0")
    return make(hosts, hardware or Hardware(), **given)
