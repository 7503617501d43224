"""The arena that others attach: sealed, its header checked, and OutOfMemory where there is no address space for it."""

import fcntl
import json
import os
import struct
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.support.programs import run_python
from unisono.base.config import Config
from unisono.base.errors import ArgumentError, InternalError, OutOfMemory
from unisono.base.records import CallRecord
from unisono.engine.kernels.ring_buffer import DATA, READ, WRITTEN
from unisono.engine.memory import arena as arena_module
from unisono.engine.memory.arena import _HEADER, _SEALS, ENTRIES, KEY_BYTES, Arena, RegionTable
from unisono.engine.memory.board import BOARD_BYTES, LINE, NEWS, PAGE, Board
from unisono.engine.memory.heap import Heap
from unisono.engine.memory.sub_arena import Lender, SubArena
from unisono.engine.process.alive import start_ticks, watch_process

SMALL = Config(segment_bytes=4096, heap_bytes=1 << 20)


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(3, SMALL)
    yield arena
    arena.close()


def test_writers_have_their_own_cache_lines(arena: Arena) -> None:
    """Lines have 128 bytes on some processors of AArch64."""
    lines = [arena.control(rank) for rank in range(3)]
    assert LINE % 128 == 0
    assert [line % LINE for line in lines] == [0, 0, 0]
    assert len({word // 128 for word in (WRITTEN, READ, DATA)}) == 3
    assert _HEADER.size // 128 < NEWS // 128


def memfd(header: bytes, size: int, *, seals: int = _SEALS) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, header, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_nobody_can_take_pages_away(arena: Arena) -> None:
    for size in (0, arena.bytes - PAGE, arena.bytes + PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(arena.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    heap = Heap(arena, 0)
    heap.empty((3 * PAGE,), torch.uint8).fill_(7)
    assert arena.release_heap(0, 0, 2 * PAGE)  # pages still go back
    assert heap.empty((3 * PAGE,), torch.uint8).fill_(8).sum() == 8 * 3 * PAGE


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_SHRINK, _SEALS & ~fcntl.F_SEAL_SHRINK])
def test_memory_that_could_shrink_is_not_attached(arena: Arena, seals: int) -> None:
    fd = memfd(os.pread(arena.fd, PAGE, 0), arena.bytes, seals=seals)
    with pytest.raises(ArgumentError, match="not an arena"):
        Arena.attach(fd)
    os.close(fd)


def test_the_copy_of_a_header_is_attached(arena: Arena) -> None:
    """Else the damaged ones might be refused for another reason."""
    fd = memfd(os.pread(arena.fd, PAGE, 0), arena.bytes)
    other = Arena.attach(fd)
    assert (other.size, other.shape, other.heap_bytes) == (3, arena.shape, SMALL.heap_bytes)
    other.close()


words = st.integers(0, (1 << 64) - 1) | st.integers(0, 5000)


@given(st.dictionaries(st.integers(0, _HEADER.size // 8 - 1), words, max_size=3), st.integers(0, 300) | st.none())
@settings(max_examples=examples(300))
def test_any_header_is_an_arena_or_an_error(damage: dict[int, int], pages: int | None) -> None:
    whole = Arena.create(2, SMALL)
    header = bytearray(os.pread(whole.fd, _HEADER.size, 0))
    for word, value in damage.items():
        struct.pack_into("<Q", header, 8 * word, value)
    fd = memfd(bytes(header), whole.bytes if pages is None else pages * PAGE)
    whole.close()
    try:
        other = Arena.attach(fd)
    except (ArgumentError, OutOfMemory):
        os.close(fd)
        return
    assert other.board(other.size - 1).pid == 0
    assert 0 < other.end <= other.bytes == os.fstat(fd).st_size
    other.close()


LIMITED = """
import resource, sys
from pathlib import Path
from unisono import Config
from unisono.engine.memory.arena import Arena
from unisono.base.errors import OutOfMemory
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limits = {"ulimit -v": (resource.RLIMIT_AS, used + (1 << 30)), "ulimit -f": (resource.RLIMIT_FSIZE, 1 << 30)}
limit, most = limits[sys.argv[1]]
resource.setrlimit(limit, (most, most))
try:
    Arena.create(2, Config(heap_bytes=1 << 33))
except OutOfMemory as error:
    print(error)
import os
before = len(os.listdir("/proc/self/fd"))
try:
    Arena.create(2, Config(heap_bytes=1 << 33))
except OutOfMemory as error:
    assert len(os.listdir("/proc/self/fd")) == before
small = Arena.create(2, Config(heap_bytes=1 << 20))
print(small.size, Arena.create(2, Config(heap_bytes=0)).bytes <= 1 << 30)
"""


@pytest.mark.parametrize(("command", "where"), [("ulimit -v", "the address space"), ("ulimit -f", "a file")])
def test_limits_of_address_space_and_of_files(command: str, where: str) -> None:
    """Heaps of a size that the user has set raise; other heaps fit."""
    done = run_python("-c", LIMITED, command)
    error, made = done.stdout.splitlines() or ("", done.stderr)
    assert f"do not fit into {where} of" in error
    assert f"({command}). Set UNISONO_HEAP_BYTES to less than the 8 GiB of each rank" in error
    assert made == "2 True"


@given(st.binary(max_size=BOARD_BYTES), st.integers(0, 9))
@settings(max_examples=examples(300))
def test_any_bytes_on_a_board_are_read(data: bytes, number: int) -> None:
    page = bytearray(BOARD_BYTES)
    page[: len(data)] = data
    board = Board(memoryview(page))
    assert board.call(number) is None or isinstance(board.call(number), CallRecord)
    assert board.gone is None or isinstance(str(board.gone), str)
    assert all(0 <= rank < 1024 for rank in board.gave_up.blames)
    assert 0 <= board.pid < 1 << 31
    fd = watch_process(board.pid or 1 << 30, board.ticks)
    if fd is not None:
        os.close(fd)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=20,
)


@given(st.binary(max_size=200) | json_like.map(lambda it: json.dumps(it).encode()))
@settings(max_examples=examples(300))
def test_any_bytes_are_a_record_or_a_value_error(data: bytes) -> None:
    try:
        record = CallRecord.unpack(data)
    except ValueError:
        return
    assert isinstance(hash(record), int)
    assert isinstance(record.text, str)
    assert CallRecord.unpack(record.pack(1 << 20)) == record


@given(st.binary(max_size=4096), st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES))
@settings(max_examples=examples(100))
def test_any_bytes_in_a_region_table_are_nothing(data: bytes, key: bytes) -> None:
    page = bytearray(4096)
    page[: len(data)] = data
    table = RegionTable(memoryview(page))
    assert table.find(key) is None
    table.write(ENTRIES - 1, key, 8192)
    assert table.find(key) == 8192


def test_region_lies_in_the_heap_of_its_lender(arena: Arena) -> None:
    lender = Lender(arena, Heap(arena, 1))
    sub = lender.lend((1, 2))
    other = Lender(arena, Heap(arena, 2))
    assert other.borrow(sub.start, (1, 2), 1).control(0) == sub.control(0)
    for start in (1 << 45, -PAGE, 0, sub.start + 1, sub.start + arena.heap_stride, arena.bytes - PAGE):
        with pytest.raises(InternalError, match="rank 1 has lent to a group of 2 ranks begins at byte"):
            other.borrow(start, (1, 2), 1)


def test_groups_of_one_name_have_keys_in_order(arena: Arena) -> None:
    first, second = (Lender(arena, Heap(arena, rank)) for rank in (0, 1))
    keys = [[lender.key(name, (0, 1)) for name in ("a", "a", "b", "a")] for lender in (first, second)]
    assert keys[0] == keys[1]
    assert len({*keys[0], first.key("a", (0, 2))}) == 5


def test_unused_entry_is_reused(arena: Arena) -> None:
    lender = Lender(arena, Heap(arena, 0))
    lent = [lender.lend((0, 1)) for _ in range(2)]
    table, keys = arena.region_table(0), [lender.key("many", (0, 1)) for _ in range(ENTRIES + 3)]
    for sub in lent:
        for rank in (0, 1):
            sub.board(rank).set_process(os.getpid(), start_ticks(os.getpid()))
    assert all(lender.announce(key, lent[0]) for key in keys[:ENTRIES])
    assert all(table.find(key) == lent[0].start for key in keys[:ENTRIES])
    assert not lender.announce(keys[-1], lent[1])  # rank 1 has joined none of them
    assert lender.memory(keys[-1], (0, 1), 0, (0, 1)) == 0
    lender.take_back(lent[0])
    assert lender.announce(keys[-1], lent[1])
    assert table.find(keys[-1]) == lent[1].start
    assert lender.announce(keys[-2], None)
    assert table.find(keys[-2]) == 0


def test_next_member_lends_where_one_has_no_room(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (Lender(arena, Heap(arena, rank)) for rank in (0, 1))

    def no_room(*_: object) -> SubArena:
        raise OutOfMemory("not here")

    monkeypatch.setattr(first, "lend", no_room)
    key = first.key("a", (0, 1))
    assert second.memory(key, (0, 1), 1, (0, 1)) == 0
    assert first.memory(key, (0, 1), 0, (0, 1)) == 1
    lent, found = second.memory(key, (0, 1), 1, (0, 1)), first.memory(key, (0, 1), 0, (0, 1))
    assert isinstance(lent, SubArena)
    assert isinstance(found, SubArena)
    assert (lent.start, lent.owner) == (found.start, found.owner) == (lent.start, 1)
    monkeypatch.setattr(second, "lend", no_room)
    key = first.key("b", (0, 1))
    assert first.memory(key, (0, 1), 0, (0, 1)) == 1
    for rank, lender in enumerate((second, first)):
        with pytest.raises(OutOfMemory, match="the shared memory of ranks 0, 1 is too full for a group of 2 ranks"):
            lender.memory(key, (0, 1), 1 - rank, (0, 1))


def test_region_is_freed_after_ctrl_c(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    lender = Lender(arena, Heap(arena, 0))
    first = lender.lend((0, 1))
    lender.take_back(first)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lender, "announce", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lender.memory(lender.key("a", (0, 1)), (0, 1), 0, (0, 1))
    assert lender.lend((0, 1)).start == first.start


def test_memory_is_found_again_after_ctrl_c(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another member may use it: it has been announced."""
    first, second = (Lender(arena, Heap(arena, rank)) for rank in (0, 1))
    key, announce = first.key("a", (0, 1)), first.announce

    def announce_late(*what: Any) -> None:
        announce(*what)
        raise KeyboardInterrupt

    monkeypatch.setattr(first, "announce", announce_late)
    with pytest.raises(KeyboardInterrupt):
        first.memory(key, (0, 1), 0, (0, 1))
    both = [lender.memory(key, (0, 1), rank, (0, 1)) for rank, lender in enumerate((first, second))]
    assert all(isinstance(sub, SubArena) and sub.owner == 0 for sub in both)
    assert both[0].start == both[1].start  # type: ignore[union-attr]  # the line above
    assert first.lend((0, 1)).start != both[0].start  # type: ignore[union-attr]  # the same


@pytest.mark.parametrize("use", [Arena.release_heap, Arena.reserve_heap])
def test_descriptor_is_not_closed_while_in_use(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, use: Callable[..., object]
) -> None:
    """Another file could have its number by then."""
    closing, seen = threading.Thread(target=arena.close), []

    def slowly(fd: int, *_: object) -> int:
        closing.start()
        closing.join(0.2)
        seen.append(os.fstat(fd).st_size)
        return 0

    monkeypatch.setattr(arena_module, "_LIBC", SimpleNamespace(fallocate=slowly))
    monkeypatch.setattr(os, "posix_fallocate", slowly)
    use(arena, 0, 0, PAGE)
    closing.join()
    assert seen == [arena.bytes]
    assert arena.fd == -1


def test_region_is_freed_if_member_pid_is_reused(arena: Arena) -> None:
    """The member has died, and a process that has started later has its number."""
    lender, mine = Lender(arena, Heap(arena, 0)), start_ticks(os.getpid())
    sub = lender.lend((0, 1))
    sub.board(0).set_process(os.getpid(), mine)
    sub.board(1).set_process(os.getpid(), mine - 1)
    sub.leave()
    assert sub.returned
    other = lender.lend((0, 1))
    other.board(1).set_process(os.getpid(), mine)
    other.leave()
    assert not other.returned


def test_released_memory_serves_the_next_group(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lender frees it and lends it to the next group of the same members, while a member still looks."""
    first, second = (Lender(arena, Heap(arena, rank)) for rank in (0, 1))
    for rank in (0, 1):
        arena.board(rank).set_process(os.getpid(), start_ticks(os.getpid()))
    old = first.lend((0, 1))
    borrowed = second.borrow(old.start, (0, 1), 1)
    old.leave()
    let_go, lent = Board.let_go, []

    def let_go_and_lend(board: Board, word: int) -> None:
        let_go.fset(board, word)
        if not lent:
            lent.append(None)
            first.collect()
            lent[:] = [first.lend((0, 1))]

    monkeypatch.setattr(Board, "let_go", property(let_go.fget, let_go_and_lend))
    borrowed.leave()
    (new,) = lent
    assert new.start == old.start
    second.collect()
    assert not new.board(1).let_go


def test_region_waits_for_messages_to_a_member(arena: Arena) -> None:
    """A transport may write there while a member that has left still has a message to come."""
    first, second = (Lender(arena, Heap(arena, rank)) for rank in (0, 1))
    lent = first.lend((0, 1))
    borrowed, late = second.borrow(lent.start, (0, 1), 1), [True]
    for board in map(lent.board, (0, 1)):
        board.set_process(os.getpid(), start_ticks(os.getpid()))
    borrowed.settled = lambda: not late
    lent.leave()
    borrowed.leave()
    assert not borrowed.board(1).let_go
    first.collect()
    assert not lent.returned
    late.clear()
    second.collect()
    first.collect()
    assert lent.returned
