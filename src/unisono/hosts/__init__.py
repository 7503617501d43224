"""Between hosts: carriers move bytes, tables become messages, a sentinel per host knows the others."""

from __future__ import annotations

__all__ = []
