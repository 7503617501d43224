"""From a table to one program per rank, and its proof."""

from __future__ import annotations

__all__ = []
