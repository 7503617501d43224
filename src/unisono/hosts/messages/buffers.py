"""Memory for messages: receive buffers, copies that leave, scratch. Buffers that are given back are used again."""

from __future__ import annotations

import torch

_LINE = 64
_CLASSES = 8
"""Sizes between a power of two and the next one: so calls of ever new sizes use idle buffers again."""


class Buffers:
    """Buffers by size. idle_bytes: the most bytes to keep for later; more is given back to the system."""

    def __init__(self, idle_bytes: int = 256 << 20) -> None:
        self._idle: dict[int, list[torch.Tensor]] = {}
        self._room = idle_bytes

    def take(self, nbytes: int) -> torch.Tensor:
        """A buffer of at least `nbytes` bytes, at the start of a cache line; its content is arbitrary."""
        step = max(_LINE, (1 << nbytes.bit_length() - 1) // _CLASSES if nbytes else 0)
        size = -(-nbytes // step) * step
        same = self._idle.get(size)
        try:
            buffer = same.pop() if same else None
        except IndexError:  # another thread took the last one
            buffer = None
        if buffer is None:
            return torch.empty(size, dtype=torch.uint8, device="cpu")
        self._room += size
        return buffer

    def give(self, buffers: list[torch.Tensor]) -> None:
        """Take back buffers that neither the caller nor the carrier uses any more."""
        for buffer in buffers:
            if (size := buffer.numel()) <= self._room:
                self._room -= size
                self._idle.setdefault(size, []).append(buffer)
