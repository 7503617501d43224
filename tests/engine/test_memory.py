"""The shared memory of a group: what is allocated comes back, what is too much is refused, nothing is left behind."""

import gc
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from unisono.base.config import Config
from unisono.base.errors import ArgumentError, OutOfMemory
from unisono.base.records import CallRecord, Departure, DepartureKind, GivenUp
from unisono.engine.memory.arena import Arena
from unisono.engine.memory.board import BOARD_BYTES, MAX_RANKS, PAGE, Board
from unisono.engine.memory.heap import Heap

SMALL = Config(segment_bytes=4096, heap_bytes=1 << 20)


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(2, SMALL)
    yield arena
    arena.close()


def taken(arena: Arena) -> int:
    """Bytes of memory behind the arena."""
    return os.stat(arena.fd).st_blocks * 512


def test_tensors_are_separate_and_aligned(arena: Arena) -> None:
    heap = Heap(arena, 0)
    tensors = [heap.empty((n,), torch.uint8).fill_(n) for n in range(1, 200)]
    for n, tensor in enumerate(tensors, start=1):
        assert tensor.data_ptr() % 64 == 0
        assert tensor.tolist() == [n] * n


def test_pieces_grow_together_again(arena: Arena) -> None:
    heap, draw = Heap(arena, 0), random.Random(3)
    for _ in range(20):
        tensors = [heap.empty((draw.randrange(1, 20_000),), torch.uint8) for _ in range(40)]
        draw.shuffle(tensors)
        del tensors[: draw.randrange(40)]
    del tensors
    whole = heap.empty((arena.heap_bytes,), torch.uint8)
    assert whole.numel() == arena.heap_bytes


def test_memory_lives_as_long_as_any_view_of_it(arena: Arena) -> None:
    heap = Heap(arena, 0)
    view = heap.empty((1000,), torch.uint8).fill_(7)[500:].view(5, 100)[1:]
    others = [heap.empty((1000,), torch.uint8).fill_(9) for _ in range(20)]
    assert view.unique().tolist() == [7]
    del view
    assert len({t.data_ptr() for t in others} | {heap.empty((1000,), torch.uint8).data_ptr()}) == 21


def test_large_pieces_go_back_to_the_system() -> None:
    arena = Arena.create(1, Config(segment_bytes=4096, heap_bytes=64 << 20))
    heap = Heap(arena, 0)
    before = taken(arena)
    tensor = heap.empty((32 << 20,), torch.uint8).fill_(1)
    assert taken(arena) - before >= 32 << 20
    del tensor
    assert taken(arena) - before < 1 << 20
    arena.close()


def test_pages_are_kept_for_equal_sizes() -> None:
    """Up to an eighth of the heap; what was freed longest ago goes first."""
    arena = Arena.create(1, Config(segment_bytes=4096, heap_bytes=64 << 20))
    heap, reserved = Heap(arena, 0), []
    reserve = arena.reserve_heap

    def count(rank: int, offset: int, nbytes: int) -> None:
        reserved.append(nbytes)
        reserve(rank, offset, nbytes)

    arena.reserve_heap = count  # type: ignore[method-assign]
    before = taken(arena)
    for _ in range(50):
        first, second, third = (heap.empty((n << 20,), torch.uint8) for n in (1, 2, 3))
        del first
        del second
        del third
    assert sorted(reserved) == [1 << 20, 2 << 20, 3 << 20]
    assert taken(arena) - before == 6 << 20
    for _ in range(2):
        del reserved[:]
        large = heap.empty((5 << 20,), torch.uint8)
        del large  # 11 MiB are too much: those of 1 and 2 MiB go
        assert taken(arena) - before == 8 << 20
    heap.empty((3 << 20,), torch.uint8)
    assert not reserved
    heap.empty((1 << 20,), torch.uint8)
    assert reserved == [1 << 20]
    arena.close()


def test_kept_pages_make_room_when_needed(arena: Arena) -> None:
    heap = Heap(arena, 0)
    tensors = [heap.empty((40_000,), torch.uint8) for _ in range(3)]
    del tensors
    assert taken(arena) > 100_000
    region = heap.lend(arena.heap_bytes // PAGE * PAGE, PAGE)
    heap.take_back(region, arena.heap_bytes // PAGE * PAGE)
    assert heap.empty((arena.heap_bytes,), torch.uint8).numel() == arena.heap_bytes


def test_region_is_zeroed_and_not_kept_with_pages(arena: Arena) -> None:
    heap, nbytes = Heap(arena, 0), 16 * PAGE
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


@pytest.mark.parametrize(("heap_bytes", "nbytes", "left"), [(1 << 44, 1 << 43, None), (1 << 30, 6 << 20, 5 << 20)])
def test_more_than_free_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, heap_bytes: int, nbytes: int, left: int | None
) -> None:
    arena = Arena.create(1, Config(segment_bytes=4096, heap_bytes=heap_bytes))
    if left:
        monkeypatch.setattr("unisono.engine.memory.arena.free_bytes", lambda: left)
    with pytest.raises(OutOfMemory, match="5 MiB free" if left else "free on this host"):
        Heap(arena, 0).empty((nbytes,), torch.uint8)
    Heap(arena, 0).empty((10,), torch.uint8).fill_(1)
    arena.close()


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


def test_other_files_are_not_attached(tmp_path: Path) -> None:
    path = tmp_path / "none"
    path.write_bytes(bytes(8192))
    with path.open("rb") as file, pytest.raises(ArgumentError, match="not an arena"):
        Arena.attach(file.fileno())


def test_a_closed_arena_leaves_nothing() -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:unisono")

    gc.collect()
    descriptors, mapped = len(os.listdir("/proc/self/fd")), mappings()
    for _ in range(5):
        arena = Arena.create(3, SMALL)
        tensor = Heap(arena, 2).empty((1000,), torch.float32).fill_(5.0)
        arena.close()
        arena.close()
        assert tensor.sum() == 5000  # it keeps the mapping
        with pytest.raises(ArgumentError, match="closed"):
            arena.board(0)
        del tensor, arena
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert mappings() <= mapped


def test_a_board_says_what_was_written_last() -> None:
    board = Board(memoryview(bytearray(4096)))
    assert (board.pid, board.gone, board.call(1), board.gave_up) == (0, None, None, GivenUp())
    board.set_process(4711, 99)
    reduce = CallRecord("all_reduce", "float32", (6,), op="sum", algorithm="all_reduce.ring", where="train.py:88")
    gather = CallRecord("gather", counts=None, root=2, where="train.py:89")
    board.set_call(1, reduce)
    board.set_call(2, gather)
    assert (board.call(1), board.call(2)) == (reduce, gather)
    board.set_call(3, CallRecord("barrier"))
    assert board.call(1) is None
    late = GivenUp(3, True, frozenset({1, 2}), "WaitTimeout: too late")
    board.set_gave_up(late)
    assert board.gave_up == late
    board.set_gone(DepartureKind.DIED, "died")
    board.set_gone(DepartureKind.RETURNED, "returned")
    assert (board.pid, board.gone) == (4711, Departure(DepartureKind.DIED, "died"))
    board.run = 7
    assert board.gone is None
    board.set_gone(DepartureKind.RETURNED, "returned")
    assert board.gone == Departure(DepartureKind.RETURNED, "returned")


def test_a_board_holds_every_rank() -> None:
    """A late rank stays a late rank, however many others are missing, too."""
    board, all_of_them = Board(memoryview(bytearray(4096))), frozenset(range(MAX_RANKS))
    board.set_gave_up(GivenUp(9, True, all_of_them, "WaitTimeout: " + "x" * 5000))
    assert board.gave_up[:3] == (9, True, all_of_them)


def test_long_words_stay_in_their_field() -> None:
    board = Board(memoryview(bytearray(4096)))
    long = CallRecord("reduce", "float32", (5,), op="ü" * 5000, words="é" * 5000, refused="ß" * 5000, where="ä" * 5000)
    board.set_call(1, long)
    board.set_call(2, long._replace(where="ä" * 5000 + "/train.py:88"))
    board.set_gone(DepartureKind.RAISED, "ö" * 5000)
    board.set_gave_up(GivenUp(1, reason="ä" * 5000))
    first, second = board.call(1), board.call(2)
    assert second is not None
    assert (first.collective, first.dtype, first.counts, set(first.op)) == ("reduce", "float32", (5,), {"ü"})
    assert second.where.endswith("train.py:88")
    assert set(board.gone.words) <= {"ö", "\N{REPLACEMENT CHARACTER}"}
    assert set(board.gave_up.reason) <= {"ä", "\N{REPLACEMENT CHARACTER}"}


def test_surrogates_on_a_board() -> None:
    """UTF-8 cannot encode them. Messages of exceptions and names of files may have some."""
    board = Board(memoryview(bytearray(BOARD_BYTES)))
    record = CallRecord("all_reduce", refused="\ud800", where="\udcff.py:1")
    board.set_call(1, record)
    assert board.call(1) == record
    board.set_gave_up(GivenUp(1, reason="\ud800"))
    board.set_attempt(1, "\ud800")
    board.set_gone(DepartureKind.RAISED, "\ud800")
    assert {board.gave_up.reason, board.attempt[1], board.gone.words} == {r"\ud800"}


records = st.builds(
    CallRecord,
    st.sampled_from(["all_reduce", "gather", "x" * 60]),
    st.sampled_from(["", "float32"]),
    st.none() | st.lists(st.integers(0, 1 << 62), max_size=8).map(tuple),
    *[st.sampled_from(["", "0123456789abcdef"]), st.text(max_size=1500), st.integers(0, 1023)],
    *[st.text(max_size=1500)] * 5,
)


@given(records)
@settings(max_examples=examples(300))
def test_any_record_fits_and_comes_back(record: CallRecord) -> None:
    data = record.pack(948)
    assert len(data) <= 948
    back = CallRecord.unpack(data)
    assert (back.collective, back.dtype, back.counts, back.root) == (
        record.collective, record.dtype, record.counts, record.root,
    )  # fmt: skip
    if len(json.dumps(record, ensure_ascii=False).encode()) <= 948:
        assert back == record
