"""Calls over several hosts: their plan, its steps, how they are run and waited for."""

from __future__ import annotations

__all__ = []
