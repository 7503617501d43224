"""What a rank has done: rings of entries in shared memory, written as it goes, that anybody may read."""

from __future__ import annotations

__all__ = []
