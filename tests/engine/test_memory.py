"""The shared memory of a group: what is allocated comes back, what is too much is refused, nothing is left behind."""

import gc
import os
import random
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from tests.engine.conftest import SMALL
from unisono.base.config import Config
from unisono.base.errors import ArgumentError, OutOfMemory
from unisono.engine.memory.arena import Arena
from unisono.engine.memory.board import MAX_RANKS, PAGE
from unisono.engine.memory.heap import Heap


def taken(arena: Arena) -> int:
    """Bytes of memory behind the arena."""
    return os.stat(arena.fd).st_blocks * 512


@pytest.mark.parametrize("seed", range(5))
def test_tensors_are_separate_and_come_back(arena: Arena, seed: int) -> None:
    """Aligned, too. A view keeps its memory; in the end, the pieces have grown together again."""
    heap, draw, live = Heap(arena, 0), random.Random(seed), list[tuple[int, torch.Tensor]]()
    for k in range(400):
        tensor = heap.empty((draw.choice([1, 63, 64, 65, draw.randrange(2, 20_000)]),), torch.uint8).fill_(k % 251)
        assert tensor.data_ptr() % 64 == 0
        live.append((k % 251, tensor if draw.random() < 0.7 else tensor[len(tensor) // 2 :].view(-1, 1)[:1]))
        while len(live) > 40 or (live and draw.random() < 0.3):
            value, tensor = live.pop(draw.randrange(len(live)))
            assert tensor.unique().tolist() == [value]
    del tensor, live
    assert heap.empty((arena.heap_bytes,), torch.uint8).numel() == arena.heap_bytes


def test_pages_are_kept_for_equal_sizes() -> None:
    """Up to an eighth of the heap; what was freed longest ago goes first."""
    arena = Arena.create(1, Config(segment_bytes=4096, heap_bytes=64 << 20))
    heap, reserve, before = Heap(arena, 0), Mock(wraps=arena.reserve_heap), taken(arena)
    arena.reserve_heap = reserve  # type: ignore[method-assign]
    for _ in range(50):
        first, second, third = (heap.empty((n << 20,), torch.uint8) for n in (1, 2, 3))
        del first
        del second
        del third
    assert sorted(call.args[-1] for call in reserve.mock_calls) == [1 << 20, 2 << 20, 3 << 20]
    assert taken(arena) - before == 6 << 20
    for _ in range(2):
        reserve.reset_mock()
        large = heap.empty((5 << 20,), torch.uint8)
        del large  # 11 MiB are too much: those of 1 and 2 MiB go
        assert taken(arena) - before == 8 << 20
    heap.empty((3 << 20,), torch.uint8)
    assert not reserve.mock_calls
    heap.empty((1 << 20,), torch.uint8)
    assert [call.args[-1] for call in reserve.mock_calls] == [1 << 20]
    arena.close()


def test_region_is_zeroed_and_not_kept_with_pages(arena: Arena) -> None:
    heap, nbytes = Heap(arena, 0), 16 * PAGE
    assert arena.map is not None
    for _ in range(2):
        region = heap.lend(nbytes, PAGE)
        assert arena.map[region : region + nbytes] == bytes(nbytes)
        arena.map[region : region + nbytes] = b"\xff" * nbytes
        heap.take_back(region, nbytes)
    before = taken(arena)
    tensor = heap.empty((nbytes,), torch.uint8)
    assert taken(arena) - before >= tensor.nbytes - 2 * PAGE


def test_garbage_collection_inside_the_allocator(arena: Arena) -> None:
    """A collection inside the allocator ends tensors of the same heap: that must neither deadlock nor lose pieces."""
    heap = Heap(arena, 0)
    reserve = arena.reserve_heap

    def collect_first(rank: int, offset: int, nbytes: int) -> None:
        gc.collect(0)
        reserve(rank, offset, nbytes)

    arena.reserve_heap = collect_first  # type: ignore[method-assign]
    for n in range(1, 50):
        cycle: list[object] = [heap.empty((n * 300,), torch.uint8)]
        cycle.append(cycle)
        del cycle
        heap.empty((n * 200,), torch.uint8)
    gc.collect()
    heap.empty((arena.heap_bytes,), torch.uint8)


def test_too_much_is_refused_and_nothing_is_lost(arena: Arena) -> None:
    heap = Heap(arena, 0)
    with pytest.raises(OutOfMemory, match=r"1 MiB free in one piece.*set UNISONO_HEAP_BYTES to more"):
        heap.empty((arena.heap_bytes + 1,), torch.uint8)
    for shape in ((1 << 60,), (1 << 40, 1 << 40)):
        with pytest.raises(OutOfMemory, match=r"not enough shared memory: .* free on this host"):
            heap.empty(shape, torch.uint8)
    heap.empty((arena.heap_bytes,), torch.uint8)


def test_more_than_free_memory_is_refused(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unisono.engine.memory.arena.free_bytes", lambda: 600 << 10)
    heap = Heap(arena, 0)
    for _ in range(3):  # addresses are not lost
        with pytest.raises(OutOfMemory, match="600 KiB free"):
            heap.empty((700 << 10,), torch.uint8)
    heap.empty((10,), torch.uint8).fill_(1)


def test_empty_tensors_and_wrong_shapes(arena: Arena) -> None:
    assert Heap(arena, 0).empty((0, 5), torch.float32).shape == (0, 5)
    assert Heap(arena, 0).empty((), torch.float32).fill_(3.0).item() == 3.0
    for shape in ((-1,), (3, -2), (0, -1)):
        with pytest.raises(ArgumentError, match="negative extent"):
            Heap(arena, 0).empty(shape, torch.float32)


def test_invalid_numbers_of_ranks_are_refused() -> None:
    for size in (0, -1, MAX_RANKS + 1):
        with pytest.raises(ArgumentError, match=str(size)):
            Arena.create(size, SMALL)


def test_tensor_keeps_memory_of_a_closed_arena() -> None:
    """No longer than it lives."""
    gc.collect()
    mapped, arena = Path("/proc/self/maps").read_text().count("memfd:unisono"), Arena.create(3, SMALL)
    tensor = Heap(arena, 2).empty((1000,), torch.float32).fill_(5.0)
    arena.close()
    arena.close()
    assert tensor.sum() == 5000
    del tensor, arena
    gc.collect()
    assert Path("/proc/self/maps").read_text().count("memfd:unisono") <= mapped
