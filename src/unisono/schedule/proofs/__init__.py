"""Proofs that a table keeps the contract of its collective: exact, by symmetry, by random fingerprints."""

from __future__ import annotations

__all__ = []
