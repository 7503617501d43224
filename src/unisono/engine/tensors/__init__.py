"""Tensors as the engine sees them: dtype codes, plain memory, whether two share it, autograd's versions."""

from __future__ import annotations

__all__ = []
