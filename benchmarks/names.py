"""The libraries that are compared, by the names that reports print."""

from __future__ import annotations

__all__ = ["GLOO", "MPICH", "OPEN_MPI", "OURS", "SHARED"]

OURS, GLOO, OPEN_MPI, MPICH = "unisono", "Gloo", "Open MPI", "MPICH"

SHARED = "unisono shared"
"""unisono on tensors in shared memory, made by `unisono.empty`."""
