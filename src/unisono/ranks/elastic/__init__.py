"""Groups that become smaller and larger: survivors agree on who has failed, new processes join."""

from __future__ import annotations

__all__ = []
