"""`unisono explain`."""

from __future__ import annotations

__all__ = []
