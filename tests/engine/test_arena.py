"""The arena that others attach: sealed, its header checked, and OutOfMemory where there is no address space for it."""

import fcntl
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.engine.conftest import SMALL
from tests.support.programs import run_python
from unisono.base.config import SHAPING
from unisono.base.errors import ArgumentError, InternalError, OutOfMemory
from unisono.engine.kernels.ring_buffer import DATA, READ, WRITTEN
from unisono.engine.memory import arena as arena_module
from unisono.engine.memory.arena import ENTRIES, KEY_BYTES, Arena, RegionTable
from unisono.engine.memory.board import LINE, NEWS, PAGE, Board
from unisono.engine.memory.heap import Heap
from unisono.engine.memory.sub_arena import Lender, SubArena
from unisono.engine.process.alive import start_ticks


@pytest.fixture
def lenders(arena: Arena) -> list[Lender]:
    """Those of ranks 0 and 1."""
    return [Lender(arena, Heap(arena, rank)) for rank in (0, 1)]


def test_writers_have_their_own_cache_lines(arena: Arena) -> None:
    """Lines have 128 bytes on some processors of AArch64."""
    lines = [arena.control(rank) for rank in range(3)]
    assert LINE % 128 == 0
    assert [line % LINE for line in lines] == [0, 0, 0]
    assert len({word // 128 for word in (WRITTEN, READ, DATA)}) == 3
    header = os.pread(arena.fd, NEWS, 0)
    assert header.rstrip(b"\0") == header[:-128].rstrip(b"\0")


SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def memfd(header: bytes, size: int, *, seals: int = SEALS) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, header, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize("seals", [None, 0, fcntl.F_SEAL_SHRINK, SEALS & ~fcntl.F_SEAL_SHRINK])
def test_memory_that_could_shrink_is_not_attached(arena: Arena, tmp_path: Path, seals: int | None) -> None:
    """Nor a file on disk, which has no seals."""
    header = os.pread(arena.fd, PAGE, 0)
    fd = os.open(tmp_path / "file", os.O_CREAT) if seals is None else memfd(header, arena.bytes, seals=seals)
    with pytest.raises(ArgumentError, match="not an arena"):
        Arena.attach(fd)
    os.close(fd)
    Arena.attach(os.dup(arena.fd)).close()


HEADER_WORDS = 6 + len(SHAPING)
words = st.integers(0, (1 << 64) - 1) | st.integers(0, 5000)


@example({}, None)
@given(st.dictionaries(st.integers(0, HEADER_WORDS - 1), words, max_size=3), st.integers(0, 300) | st.none())
@settings(max_examples=examples(300))
def test_any_header_is_an_arena_or_an_error(damage: dict[int, int], pages: int | None) -> None:
    whole = Arena.create(2, SMALL)
    header = bytearray(os.pread(whole.fd, 8 * HEADER_WORDS, 0))
    for word, value in damage.items():
        struct.pack_into("<Q", header, 8 * word, value)
    fd = memfd(bytes(header), whole.bytes if pages is None else pages * PAGE)
    whole.close()
    try:
        other = Arena.attach(fd)
    except (ArgumentError, OutOfMemory):
        assert damage or pages is not None
        os.close(fd)
        return
    assert other.board(other.size - 1).pid == 0
    assert 0 < other.end <= other.bytes == os.fstat(fd).st_size
    other.close()


LIMITED = """
import os, resource, sys
from pathlib import Path
from unisono import Config
from unisono.engine.memory.arena import Arena
from unisono.base.errors import OutOfMemory
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limits = {"ulimit -v": (resource.RLIMIT_AS, used + (1 << 30)), "ulimit -f": (resource.RLIMIT_FSIZE, 1 << 30)}
limit, most = limits[sys.argv[1]]
resource.setrlimit(limit, (most, most))
before = len(os.listdir("/proc/self/fd"))
try:
    Arena.create(2, Config(heap_bytes=1 << 33))
except OutOfMemory as error:
    assert len(os.listdir("/proc/self/fd")) == before
    print(error)
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


def test_groups_of_one_name_have_keys_in_order(lenders: list[Lender]) -> None:
    keys = [[lender.key(name, (0, 1)) for name in ("a", "a", "b", "a")] for lender in lenders]
    assert keys[0] == keys[1]
    assert len({*keys[0], lenders[0].key("a", (0, 2))}) == 5


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


def test_next_member_lends_where_one_has_no_room(lenders: list[Lender]) -> None:
    first, second = lenders
    full, key = first.heap.empty((SMALL.heap_bytes,), torch.uint8), first.key("a", (0, 1))
    assert first.memory(key, (0, 1), 0, (0, 1)) == 1
    lent, found = second.memory(key, (0, 1), 1, (0, 1)), first.memory(key, (0, 1), 0, (0, 1))
    assert isinstance(lent, SubArena)
    assert isinstance(found, SubArena)
    assert found.start == lent.start != full.data_ptr()


@pytest.mark.parametrize("announced", [False, True])
def test_memory_is_not_lost_by_ctrl_c(arena: Arena, announced: bool) -> None:
    """It is free again, or is found again if it has been announced: another member may use it."""
    first, second = (Lender(arena, Heap(arena, rank)) for rank in (0, 1))
    usual = first.lend((0, 1))
    first.take_back(usual)
    key, announce = first.key("a", (0, 1)), first.announce

    def interrupted(key: bytes, sub: SubArena | None) -> bool:
        first.announce = announce  # type: ignore[method-assign]
        if announced:
            announce(key, sub)
        raise KeyboardInterrupt

    first.announce = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        first.memory(key, (0, 1), 0, (0, 1))
    if announced:
        both = [lender.memory(key, (0, 1), rank, (0, 1)) for rank, lender in enumerate((first, second))]
        assert [(sub.start, sub.owner) for sub in both if isinstance(sub, SubArena)] == [(usual.start, 0)] * 2
    assert (first.lend((0, 1)).start == usual.start) == (not announced)


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
    with pytest.raises(ArgumentError, match="closed"):
        arena.board(0)


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


def test_released_memory_serves_the_next_group(
    arena: Arena, lenders: list[Lender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lender frees it and lends it to the next group of the same members, while a member still looks."""
    first, second = lenders
    for rank in (0, 1):
        arena.board(rank).set_process(os.getpid(), start_ticks(os.getpid()))
    old = first.lend((0, 1))
    borrowed = second.borrow(old.start, (0, 1), 1)
    old.leave()
    let_go, lent = Board.let_go, list[SubArena]()

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


def test_region_waits_for_messages_to_a_member(lenders: list[Lender]) -> None:
    """A transport may write there while a member that has left still has a message to come."""
    first, second = lenders
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
