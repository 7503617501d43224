"""Pages of 16 and 64 KiB, and cache lines of 128 bytes: what AArch64 may have. Here the system's part is imitated."""

import os
import random
from ctypes import c_int64
from types import SimpleNamespace

import pytest
import torch

from unisono.base.config import Config
from unisono.engine.kernels.ring_buffer import DATA, READ, WRITTEN
from unisono.engine.memory import arena, board
from unisono.engine.memory.arena import Arena
from unisono.engine.memory.board import LINE, PAGE
from unisono.engine.memory.heap import Heap

pytestmark = pytest.mark.quick


def with_pages(of: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system reserve and give back memory in pages of so many bytes.

    It reserves all pages that a range touches. Of a range to be cleared, it gives back whole pages and clears the rest.
    """
    punch, reserve = arena._LIBC.fallocate, os.posix_fallocate

    def clear(fd: int, mode: int, at: c_int64, nbytes: c_int64) -> int:
        first, end = at.value, at.value + nbytes.value
        whole, last = -(-first // of) * of, end // of * of
        if whole >= last:
            os.pwrite(fd, bytes(end - first), first)
            return 0
        os.pwrite(fd, bytes(whole - first), first)
        os.pwrite(fd, bytes(end - last), last)
        return int(punch(fd, mode, c_int64(whole), c_int64(last - whole)))

    def reserve_pages(fd: int, at: int, nbytes: int) -> None:
        first, end = at // of * of, -(-(at + nbytes) // of) * of
        reserve(fd, first, min(end, os.fstat(fd).st_size) - first)

    monkeypatch.setattr(arena, "_LIBC", SimpleNamespace(fallocate=clear))
    monkeypatch.setattr(arena.os, "posix_fallocate", reserve_pages)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("page", [PAGE, 16 << 10, 64 << 10])
def test_heaps_and_regions_keep_apart(page: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with_pages(page, monkeypatch)
    made, draw = Arena.create(2, Config(heap_bytes=8 << 20)), random.Random(seed)
    heap, other = Heap(made, 0), Heap(made, 1).empty((5000,), torch.uint8).fill_(255)
    tensors: list[tuple[torch.Tensor, int]] = []
    regions: list[tuple[int, int]] = []
    for step in range(150):
        value, size = step % 251 + 1, draw.choice([1, 500, 5000, 20_000, 70_000, 200_000])
        kind = draw.randrange(4)
        if kind == 0 or (kind == 1 and not tensors):
            tensors.append((heap.empty((size,), torch.uint8).fill_(value), value))
        elif kind == 1:
            tensors.pop(draw.randrange(len(tensors)))
        elif kind == 2 or not regions:
            nbytes = -(-size // PAGE) * PAGE
            start = heap.lend(nbytes, PAGE)
            region = memoryview(made.map)[start : start + nbytes]  # type: ignore[arg-type]  # it is open
            assert bytes(region) == bytes(nbytes)
            region[:] = bytes([255]) * nbytes
            regions.append((start, nbytes))
        else:
            heap.take_back(*regions.pop(draw.randrange(len(regions))))
        assert all(bool((tensor == value).all()) for tensor, value in tensors)
        for start, nbytes in regions:
            assert memoryview(made.map)[start : start + nbytes] == bytes([255]) * nbytes  # type: ignore[arg-type]
    assert bool((other == 255).all())
    tensors.clear()
    made.close()


def test_words_with_different_writers_are_in_different_cache_lines() -> None:
    made = Arena.create(3, Config(heap_bytes=1 << 20))
    lines = [made.control(rank) for rank in range(3)]
    assert LINE % 128 == 0
    assert [line % LINE for line in lines] == [0, 0, 0]
    assert len({word // 128 for word in (WRITTEN, READ, DATA)}) == 3
    assert arena._HEADER.size // 128 < board.NEWS // 128
    made.close()
