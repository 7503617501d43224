"""Where other libraries plug in: torch.distributed and Ray."""

from __future__ import annotations

__all__ = []
