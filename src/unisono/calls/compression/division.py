"""Groups inside hosts and between them, the cells of a vector that they sum, and the rounding errors that they keep."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...base.errors import InternalError
from ...ranks.group.group import Group
from ..groups import split
from .rounding import BLOCK


@dataclass(frozen=True)
class Division:
    """The ranks of a group that spans hosts, as one of them sees it.

    inside: the group of its host.
    rail: the group of ranks, one of each host, that sum the same part of vectors; None: this rank sums none.
    seat: its place on its host.
    rails: the number of such groups.
    """

    group: Group
    inside: Group
    rail: Group | None
    seat: int
    rails: int

    @classmethod
    def of(cls, group: Group) -> Division:
        """The division of a group. A call of the group."""
        hosts, rank = group.hosts, group.rank
        seat = hosts.seat(rank)
        inside = split(hosts.host_of(rank), group=group, name=f"{group.name}, inside a host")
        rail = split(seat if seat < hosts.rails else None, group=group, name=f"{group.name}, between hosts")
        if not isinstance(inside, Group):
            raise InternalError(f"rank {rank} is on no host")
        return cls(group, inside, rail if isinstance(rail, Group) else None, seat, hosts.rails)

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return len(self.group.hosts.members)


@dataclass(frozen=True)
class Cells:
    """A vector in equal cells of whole blocks: for each rail, one cell for each host. Zeros fill up the last cells.

    blocks: the blocks of one cell.
    """

    rails: int
    hosts: int
    blocks: int

    @classmethod
    def of(cls, elements: int, division: Division) -> Cells:
        count = division.rails * division.hosts
        return cls(division.rails, division.hosts, -(-elements // (count * BLOCK)))

    @property
    def share(self) -> int:
        """The number of elements that a rail sums."""
        return self.hosts * self.blocks * BLOCK

    @property
    def elements(self) -> int:
        """The number of all elements, with the zeros."""
        return self.rails * self.share


class Kept:
    """The rounding errors of one tensor: of this rank's share, by host, and of the sum that this rank makes."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self._share = torch.zeros(cells.hosts, cells.blocks * BLOCK, device="cpu")
        self._sum = torch.zeros(1, cells.blocks * BLOCK, device="cpu")

    def add(self, values: torch.Tensor) -> None:
        """Add the errors of the last call to a share or a sum."""
        values += self._of(values)

    def keep(self, values: torch.Tensor, rounded: torch.Tensor) -> None:
        """Keep the errors of this call. Infinite values and NaN have no error."""
        errors = self._of(values)
        torch.sub(values, rounded, out=errors)
        errors.nan_to_num_(0.0, 0.0, 0.0)

    def _of(self, values: torch.Tensor) -> torch.Tensor:
        return self._sum if len(values) == 1 else self._share
