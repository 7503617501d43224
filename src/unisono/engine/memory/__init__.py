"""Shared memory: how it is laid out, who has which part of it, and what ranks write there for each other."""

from __future__ import annotations

__all__ = []
