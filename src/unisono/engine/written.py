"""Autograd must know which tensors kernels have written: gradients made of what was there before would be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

__all__ = ["mark_written"]

mark_written: Callable[[Iterable[torch.Tensor]], None] = torch._C._increment_version  # noqa: SLF001
"""What `torch.autograd.graph.increment_version` calls, in half the time. Backward through an operation that has saved
one of these tensors raises an error from now on, as after any operation in place."""
