"""What rounding has taken away, to be added to the next values at the same place."""

from __future__ import annotations

import torch

from .division import Cells
from .rounding import BLOCK


class Kept:
    """The errors of one tensor: of this rank's share, by host, and of the sum that it makes."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self._share = torch.zeros(cells.hosts, cells.blocks * BLOCK, device="cpu")
        self._sum = torch.zeros(1, cells.blocks * BLOCK, device="cpu")

    def add(self, values: torch.Tensor) -> None:
        """Add the errors of the last call to a share or a sum."""
        values += self._of(values)

    def keep(self, values: torch.Tensor, rounded: torch.Tensor) -> None:
        """Keep the errors of this call. Where values are infinite or no numbers there is none."""
        errors = self._of(values)
        torch.sub(values, rounded, out=errors)
        errors.nan_to_num_(0.0, 0.0, 0.0)

    def _of(self, values: torch.Tensor) -> torch.Tensor:
        return self._sum if len(values) == 1 else self._share
