"""Groups inside hosts and between them, the cells of a vector that they sum, and how cells are rounded.

Rounded values are whole blocks of float32, in rows of bytes. Each row is sent alone. Rounding errors are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from ...base.errors import InternalError
from ...ranks.group.group import Group
from ..groups import split

BLOCK = 256
"""Values that share a scale."""

_SCALE_BYTES, _MOST = 4, 127.0


class Rounding(Protocol):
    """A way to round. Infinite values and NaN stay so, or make their whole block so."""

    def nbytes(self, blocks: int) -> int:
        """The bytes of this number of blocks."""
        ...

    def pack(self, values: torch.Tensor) -> torch.Tensor:
        """Rows of float32 as rows of bytes."""
        ...

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """Rows of bytes as rows of float32."""
        ...


class _Bfloat16:
    """The upper half of each float32, rounded to nearest."""

    def nbytes(self, blocks: int) -> int:
        return blocks * BLOCK * 2

    def pack(self, values: torch.Tensor) -> torch.Tensor:
        return values.bfloat16().view(torch.uint8)

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        return packed.view(torch.bfloat16).float()


class _Int8:
    """For each block a scale, the greatest magnitude / 127; then multiples of the scales, -127 to 127."""

    def nbytes(self, blocks: int) -> int:
        return blocks * (BLOCK + _SCALE_BYTES)

    def pack(self, values: torch.Tensor) -> torch.Tensor:
        rows, blocks = len(values), values.shape[1] // BLOCK
        packed = torch.empty(rows, self.nbytes(blocks), dtype=torch.uint8, device="cpu")
        scales, steps = self._parts(packed)
        of_blocks = values.view(rows, blocks, BLOCK)
        scales.copy_(of_blocks.abs().amax(2)).div_(_MOST)
        least = torch.finfo(torch.float32).tiny  # in blocks of zeros the scale is 0, and any divisor is right
        counts = of_blocks / scales.clamp_min(least).unsqueeze(2)
        steps.copy_(counts.round_().clamp_(-_MOST, _MOST).nan_to_num_(0.0))
        return packed

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        scales, steps = self._parts(packed)
        return (steps.float() * scales.unsqueeze(2)).flatten(1)

    def _parts(self, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scales and multiples of rows of bytes: views, by row, block and value."""
        rows, blocks = len(packed), packed.shape[1] // self.nbytes(1)
        scales = packed[:, : blocks * _SCALE_BYTES].view(torch.float32)
        return scales, packed[:, blocks * _SCALE_BYTES :].view(torch.int8).view(rows, blocks, BLOCK)


ROUNDINGS: Mapping[str, Rounding] = {"bf16": _Bfloat16(), "int8": _Int8()}
"""The user's name of a rounding -> the rounding."""


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
