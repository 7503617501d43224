"""Networks as data: their links, and which of them a message takes."""

from __future__ import annotations

__all__ = []
