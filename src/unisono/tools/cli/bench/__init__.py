"""`unisono bench`."""

from __future__ import annotations

__all__ = []
