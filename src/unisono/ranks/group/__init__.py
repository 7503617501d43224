"""Groups: `Group` itself, the default group, `init`, sub-groups in the memory of the world, shared tensors."""

from __future__ import annotations

__all__ = []
