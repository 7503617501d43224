"""Which ranks share a host. This is a map only; `hosts` finds out which ranks do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..base.errors import ArgumentError

_MOST_RANKS = 1 << 16
"""The most ranks on the hosts that a text names: more would take hours to explain, or all memory."""

_FORM = r"(?!.*x.*\+)(?:(?P<many>\d{1,15})x)?(?P<sizes>\d{1,15}(?:\+\d{1,15})*)(?P<turns>:round_robin)?"


@dataclass(frozen=True)
class Hosts:
    """The ranks 0 .. p-1 by host. Raises ArgumentError unless each rank is on one host.

    Attributes:
        members: The ranks of each host, ascending; hosts in the order of their lowest ranks.
    """

    members: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        ranks = sorted(rank for host in self.members for rank in host)
        lowest = [host[0] for host in self.members if host]
        tidy = all(list(host) == sorted(host) for host in self.members) and lowest == sorted(lowest)
        if not ranks or ranks != list(range(len(ranks))) or len(lowest) < len(self.members) or not tidy:
            raise ArgumentError(
                f"hosts: got {self.members}, expected each of the ranks 0 .. p-1 on one host, in ascending order"
            )

    @classmethod
    def one(cls, ranks: int) -> Hosts:
        return cls((tuple(range(ranks)),))

    @classmethod
    def of(cls, names: Sequence[object]) -> Hosts:
        """From the name of each rank's host: ranks with equal names share a host."""
        by_name: dict[object, list[int]] = {}
        for rank, name in enumerate(names):
            by_name.setdefault(name, []).append(rank)
        return cls(tuple(map(tuple, by_name.values())))

    @classmethod
    def parse(cls, text: str) -> Hosts:
        """From text: `4x8` (4 hosts of 8 ranks) or `3+1` (3 ranks, then 1); `:round_robin` at the end deals ranks in
        turn.

        Raises ArgumentError for other texts.
        """
        found = re.fullmatch(_FORM, text.strip()) if isinstance(text, str) else None
        many, sizes = (int(found["many"] or 1), [*map(int, found["sizes"].split("+"))]) if found else (0, [])
        if found is None or not many or 0 in sizes:
            raise ArgumentError(f"hosts: got {text!r}, expected text such as 4x8, 3+1 or 2x2:round_robin")
        if (ranks := many * sum(sizes)) > _MOST_RANKS:
            raise ArgumentError(f"hosts: {text} has {ranks:,} ranks, expected at most {_MOST_RANKS:,}")
        seats = [(seat, host) for host, size in enumerate(sizes * many) for seat in range(size)]
        return cls.of([host for _, host in (sorted(seats) if found["turns"] else seats)])

    @property
    def spans(self) -> bool:
        """Is there more than one host?"""
        return len(self.members) > 1

    @cached_property
    def ranks(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.members))

    @cached_property
    def rails(self) -> int:
        """The most rails, which is the size of the smallest host: every rail has one rank of each host."""
        return min(map(len, self.members))

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        return {rank: (host, seat) for host, ranks in enumerate(self.members) for seat, rank in enumerate(ranks)}

    @cached_property
    def places(self) -> tuple[int, ...]:
        """For each rank the number of its host."""
        return tuple(self.host_of(rank) for rank in range(self.ranks))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """All ranks, host by host."""
        return tuple(rank for host in self.members for rank in host)

    def host_of(self, rank: int) -> int:
        return self._places[rank][0]

    def seat(self, rank: int) -> int:
        """A rank's place among the ranks of its host."""
        return self._places[rank][1]

    def beside(self, rank: int) -> tuple[int, ...]:
        """All ranks of a rank's host."""
        return self.members[self.host_of(rank)]

    def restrict(self, ranks: Iterable[int]) -> Hosts:
        """The hosts of some ranks, which are numbered by their places in `ranks`."""
        return Hosts.of([self.host_of(rank) for rank in ranks])

    @property
    def text(self) -> str:
        """The text that `parse` reads, such as `4x8` or `3+1`; the ranks of each host if they are not consecutive."""
        sizes = [len(host) for host in self.members]
        alike = len(set(sizes)) == 1 and len(sizes) > 1
        short = f"{len(sizes)}x{sizes[0]}" if alike else "+".join(map(str, sizes))
        in_order = self.order == tuple(range(self.ranks))
        return short if in_order else f"{short} ({' | '.join(' '.join(map(str, host)) for host in self.members)})"
