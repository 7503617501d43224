"""What is right with the machine that ranks run on, and what to change. It is looked at once; then checks judge."""

from __future__ import annotations

__all__ = []
