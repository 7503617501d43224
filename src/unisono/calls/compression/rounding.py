"""Round values and pack them into bytes: whole blocks of float32, in rows. Each row is sent alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

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
