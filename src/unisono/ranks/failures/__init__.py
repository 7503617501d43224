"""What a rank does while a call does not end: look at its peers, then wait on or raise; who is still there."""

from __future__ import annotations

__all__ = []
