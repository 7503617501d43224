"""Tell autograd which tensors a kernel has overwritten, so that backward never uses values that are gone.

Kernels write through addresses, which autograd does not see. A call raises the version counter of a tensor that it has
written, as an operation in place does, where autograd may need the old values: where the tensor

- is held by autograd or other C++ code, such as an operation that has saved it for backward; or
- requires grad, with grad mode on, and is neither a leaf nor a view of one.

Then backward through an operation that has saved the tensor raises RuntimeError. Other tensors keep their version, as
they do with Gloo: a detached tensor shares its counter with the tensor it came from, and a higher version makes that
one's views unusable if `chunk` or `split` made them, or `no_grad` code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

mark_written: Callable[[Iterable[torch.Tensor]], None] = torch._C._increment_version  # noqa: SLF001
"""Raise the version counters of tensors: `torch.autograd.graph.increment_version`, in half the time."""

use_count: Callable[[torch.Tensor], int] = torch.Tensor._use_count  # type: ignore[attr-defined]  # noqa: SLF001
"""How many references C++ code has to a tensor, counting one for all of Python's."""


def needed_by_autograd(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors whose old values autograd may need. Reads the grad mode, so call it on the caller's thread."""
    tracked = torch.is_grad_enabled()
    return [
        tensor
        for tensor in tensors
        if (tracked and not _from_leaf(tensor) if tensor.requires_grad else use_count(tensor) > 1)
    ]


def _from_leaf(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf or (tensor._is_view() and tensor._base.is_leaf)  # type: ignore[union-attr]  # noqa: SLF001
