"""What several commands share."""

from __future__ import annotations

__all__ = []
