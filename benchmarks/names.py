"""The libraries that are compared, by the names that reports print."""

from __future__ import annotations

OURS, GLOO, OPEN_MPI, MPICH = "unisono", "Gloo", "Open MPI", "MPICH"

SHARED = "unisono shared"
"""unisono on tensors in shared memory, made by `unisono.empty`."""
