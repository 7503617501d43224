"""The shared memory of a world: one memfd, which every rank maps. It has no name in a file system.

    header | region tables | plan registries | what `Layout` says | heap of rank 0, 1, ...

A region table says where a rank has lent memory to sub-groups, a plan registry what the numbers in its logs mean. The
heaps hold the tensors of `unisono.empty` and the memory of sub-groups
(`sub_arena`). A page takes memory when it is reserved; reserving raises OutOfMemory if there is too little. The memory
is free again when the last process has ended. Its size is sealed, and each process that attaches it checks the header:
so no process can take pages from under another.

Members of a group look at region tables, not at a store, because only ranks of the world can write there. An entry is
a record (see `engine.memory_order`): the key of a group, and where its region begins. The region is ready before the
entry is written.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...base.config import SHAPING, Config
from ...base.dtype_codes import DTYPES_DIGEST
from ...base.errors import ArgumentError, OutOfMemory
from ...base.linux import fill_standard_streams, free_bytes, processors
from ...base.records import digest
from ...base.units import format_bytes
from ..compile.program import FAR_HALF, LineWord
from ..logs.plan_registry import PLAN_REGISTRY_BYTES, PlanRegistry
from ..logs.rank_logs import CALL_LOG_BYTES, CALLS, CallLog
from ..memory_order import RECORD_HEAD, read_record, write_record
from .board import BOARD_BYTES, LINE, MAX_RANKS, NEWS, PAGE, Board, first_board, whole_pages

KEY_BYTES = 16
_ENTRY_BYTES = RECORD_HEAD + KEY_BYTES + 8

ENTRIES = PAGE // _ENTRY_BYTES
NO_ROOM = 0
"""In place of an offset: the group cannot be made. No region begins there, because the arena's header does."""

_MAGIC = 0x6F6E6F73696E75
_LAYOUT = LINE, PAGE, BOARD_BYTES, CALLS, PLAN_REGISTRY_BYTES, MAX_RANKS, SHAPING
_VERSION = digest(11, *_LAYOUT, DTYPES_DIGEST)
"""What ranks must agree on to share memory; the first number is raised when the meaning of a word changes."""
_HEADER = struct.Struct(f"<6Q{len(SHAPING)}Q")
_MOST = 1 << 62
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_LIBC = ctypes.CDLL(None, use_errno=True)
_PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE of linux/falloc.h
_SHARE = 4
"""Shared memory takes at most this fraction (1/n) of the address space that a limit leaves to the process."""


class Layout:
    """The shared memory of a group, in an arena or in a sub-group's region of one.

        control lines | boards | mail words | logs of calls | staging of rank 0, 1, ...

    Kernels wait for words of the control lines. A board tells peers what went wrong on a rank. A mail word is an offset
    in the sender's heap: there is the ring for messages from one rank to another. A log has a rank's last calls.
    Staging holds copies of private tensors for peers.

    size, half, start: the number of ranks, the bytes of a staging half, and the first byte in the mapping.

    map, base: the mapping and its address.
    heaps: the address of each rank's heap of `heap_bytes` bytes.
    neighbours: the number of ranks on the machine.
    processors: how many processors the ranks may use together; in the header, so it is the same on all of them.
    head: bytes before the staging areas.
    end: the offset behind them.
    """

    heap_bytes: int
    neighbours: int
    processors: int

    def __init__(self, size: int, half: int, start: int = 0) -> None:
        self.size, self.half, self.start = size, half, start
        self.map: mmap.mmap | None = None
        self.base = 0
        self.heaps: Sequence[int] = ()
        self._boards = first_board(start, size)
        self._mail = self._boards + size * BOARD_BYTES
        self._logs = self._mail + whole_pages(8 * size * size)
        self._staging = self._logs + whole_pages(size * CALL_LOG_BYTES)
        self.head = self._staging - start
        # An odd number of pages from one rank to the next maps their staging areas to different cache sets.
        self.stage_stride = whole_pages(2 * half) + PAGE
        self.end = self._staging + size * self.stage_stride

    @property
    def oversubscribed(self) -> bool:
        """Do ranks outnumber their processors? Then none spins: it would take time from the rank that it waits for."""
        return self.neighbours > self.processors

    def control(self, rank: int) -> int:
        return self.base + self.start + rank * LINE

    def awaits_mail(self, rank: int) -> int:
        """The address of the word that says that a rank sleeps until a message comes, or is taken."""
        return self.control(rank) + 8 * LineWord.AWAITS_MAIL

    def mail(self, sender: int, receiver: int) -> int:
        """The address of the mail word from one rank to another. The word is 0 until the first message."""
        return self.base + self._mail + 8 * (receiver * self.size + sender)

    def log_address(self, rank: int) -> int:
        return self.base + self._logs + rank * CALL_LOG_BYTES

    def stage(self, rank: int) -> int:
        """The address of a rank's staging area, which has two halves."""
        return self.base + self._staging + rank * self.stage_stride

    def heap(self, rank: int) -> int:
        return self.heaps[rank]

    def words(self, address: int, count: int) -> memoryview:
        """The words at an address in this memory."""
        return self._memory(address - self.base, 8 * count).cast("q")

    def board(self, rank: int) -> Board:
        return Board(self._memory(self._boards + rank * BOARD_BYTES, BOARD_BYTES))

    def log(self, rank: int) -> CallLog:
        return CallLog(self._memory(self._logs + rank * CALL_LOG_BYTES, CALL_LOG_BYTES))

    def _memory(self, start: int, nbytes: int) -> memoryview:
        if self.map is None:
            raise ArgumentError("this arena is closed")
        return memoryview(self.map)[start : start + nbytes]


class RegionTable:
    """The table of one rank. The owner writes it, its peers read it."""

    def __init__(self, page: memoryview) -> None:
        self._page = page

    def write(self, entry: int, key: bytes, start: int) -> None:
        """Say that the region of the group with this key begins at this offset."""
        write_record(self._page, entry * _ENTRY_BYTES, 1, key + start.to_bytes(8, "little"))

    def find(self, key: bytes) -> int | None:
        """Where the region of the group with this key begins, or NO_ROOM; None while its owner has not said it."""
        page, room = bytes(self._page), KEY_BYTES + 8
        for at in range(0, ENTRIES * _ENTRY_BYTES, _ENTRY_BYTES):
            if page[at + RECORD_HEAD : at + RECORD_HEAD + KEY_BYTES] == key:
                _, data = read_record(self._page, at, room)
                if len(data) == room and data[:KEY_BYTES] == key:
                    return int.from_bytes(data[KEY_BYTES:], "little")
        return None


class Arena(Layout):
    """The mapped shared memory of `size` ranks. shape: the settings in SHAPING, which it has for all of them."""

    def __init__(self, fd: int, size: int, processors: int, half: int, heap: int, shape: Sequence[int]) -> None:
        super().__init__(size, half, PAGE + size * (PAGE + PLAN_REGISTRY_BYTES))
        self.shape: Mapping[str, int] = dict(zip(SHAPING, shape, strict=True))
        self.fd, self.heap_bytes, self.neighbours, self.processors = fd, heap, size, processors
        self.heap_stride = whole_pages(heap) + 17 * PAGE
        self.bytes = self.end + size * self.heap_stride
        self.free_bytes = 0
        """The memory that was free on the host when this process last reserved some."""
        self._staged = False
        self._using_fd = threading.RLock()
        """Held while the descriptor is used, and closed: then another file may get its number. Reentrant, because
        the garbage collector may free memory at any time.
        """

    @classmethod
    def create(
        cls, size: int, config: Config | None = None, pids: Iterable[int] = (), *, spans: bool = False
    ) -> "Arena":
        """Create shared memory for `size` ranks. Other processes attach it by its `fd`.

        pids: of ranks that may be bound to other processors than this process.
        spans: the ranks are on several hosts.
        """
        if not 1 <= size <= MAX_RANKS:
            raise ArgumentError(f"size: got {size}, expected 1 to {MAX_RANKS} ranks on a host")
        if not hasattr(os, "memfd_create"):
            raise ArgumentError("this system has no memfd_create, which unisono needs. Use Linux.")
        config = config or Config.from_env()
        shape = [getattr(config, name) for name in SHAPING]
        fill_standard_streams()
        fd = os.memfd_create("unisono", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # Two segments of every rank's largest staging need, and a page for ragged ends.
            half = max(4 * config.segment_bytes, FAR_HALF if spans else 0)
            there = processors(pids)
            heap = config.heap_bytes or _usual_heap(size, cls(fd, size, there, half, 0, shape).bytes)
            arena = cls(fd, size, there, half, heap, shape)
            arena._stretch()
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            arena._reserve(0, arena.start + arena.head)
            os.pwrite(fd, _HEADER.pack(_MAGIC, _VERSION, size, there, half, heap, *shape), 0)
            arena._map()
        except BaseException:
            os.close(fd)
            raise
        return arena

    @classmethod
    def attach(cls, fd: int, *, to_look: bool = False) -> "Arena":
        """Map the arena that another process has created. Raises ArgumentError for any other file, OutOfMemory.

        to_look: for a process that is no rank, and only reads; addresses are then offsets.
        """
        try:
            seals, header = fcntl.fcntl(fd, fcntl.F_GET_SEALS), os.pread(fd, _HEADER.size, 0)
        except OSError:  # no memfd
            seals, header = 0, b""
        if seals & _SEALS != _SEALS or len(header) < _HEADER.size:
            raise ArgumentError(
                f"file descriptor {fd} is not an arena: its size is not sealed, or its header is missing"
            )
        magic, version, size, there, half, heap, *shape = _HEADER.unpack(header)
        if magic != _MAGIC or version != _VERSION:
            raise ArgumentError(
                f"file descriptor {fd} is an arena of another version. Install the same unisono on all ranks."
            )
        wrong = ArgumentError(
            f"file descriptor {fd} is not an arena: its size does not fit its header ({size} ranks, {there} "
            f"processors, staging halves of {half} bytes, heaps of {heap} bytes, settings {shape})"
        )
        if not (1 <= size <= MAX_RANKS and min(there, half, heap) > 0 and max(there, half, heap, *shape) < _MOST):
            raise wrong
        arena = cls(fd, size, there, half, heap, shape)
        if os.fstat(fd).st_size != arena.bytes:
            raise wrong
        if to_look:
            arena.map = mmap.mmap(fd, arena.bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        else:
            arena._map()
        return arena

    def region_table(self, rank: int) -> RegionTable:
        """The table in which a rank says where it has lent memory to sub-groups."""
        return RegionTable(self._memory(PAGE * (1 + rank), PAGE))

    def _stretch(self) -> None:
        try:
            os.ftruncate(self.fd, self.bytes)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise self._too_large("a file", "ulimit -f") from error

    def _too_large(self, where: str, command: str) -> OutOfMemory:
        limit = _limit(command)
        most = "" if limit is None else f" of {format_bytes(limit)} ({command})"
        return OutOfMemory(
            f"{format_bytes(self.bytes)} of shared memory for {self.size} ranks do not fit into {where}{most}. Set "
            f"UNISONO_HEAP_BYTES to less than the {format_bytes(self.heap_bytes)} of each rank, or raise the limit."
        )

    def _map(self) -> None:
        try:
            self.map = mmap.mmap(self.fd, self.bytes, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_NORESERVE", 0x4000))
        except (OSError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOMEM:
                raise
            raise self._too_large("the address space", "ulimit -v") from error
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.heaps = range(self.base + self.end, self.base + self.bytes, self.heap_stride)

    @property
    def news(self) -> ctypes.c_uint64:
        """A number that grows when boards have urgent news: a rank of the world has gone, or a rank has shown its board
        to the others (`hosts.far.Far.wake`). The sentinel counts.
        """
        if self.map is None:
            raise ArgumentError("this arena is closed")
        return ctypes.c_uint64.from_buffer(self.map, NEWS)

    def plan_registry(self, rank: int) -> PlanRegistry:
        """What the numbers in a rank's logs mean."""
        first = PAGE * (1 + self.size) + rank * PLAN_REGISTRY_BYTES
        return PlanRegistry(self._memory(first, PLAN_REGISTRY_BYTES))

    def reserve_staging(self, rank: int) -> None:
        """Reserve a rank's staging area, at the first call only. Raises OutOfMemory."""
        if not self._staged:
            self._reserve(self.stage(rank) - self.base, self.stage_stride)
            self._staged = True

    def reserve_heap(self, rank: int, offset: int, nbytes: int) -> None:
        """Reserve nbytes at an offset in a rank's heap. Raises OutOfMemory."""
        self._reserve(self.heap(rank) - self.base + offset, nbytes)

    def release_heap(self, rank: int, offset: int, nbytes: int) -> bool:
        """Return whole pages of a rank's heap to the system; they are zero afterwards. False if it refuses."""
        at = self.heap(rank) - self.base + offset
        with self._using_fd:  # a closed one is -1, which the system refuses
            return bool(_LIBC.fallocate(self.fd, _PUNCH_HOLE, ctypes.c_int64(at), ctypes.c_int64(nbytes)) == 0)

    def close(self) -> None:
        """Close the file descriptor. The mapping ends with the last tensor in it."""
        with self._using_fd:
            fd, self.fd, self.map = self.fd, -1, None
            if fd >= 0:
                os.close(fd)

    def check_free(self, nbytes: int) -> None:
        """Raise OutOfMemory if the host has less free memory than this."""
        self.free_bytes = _available_bytes()
        if nbytes > self.free_bytes:
            raise self._too_little(nbytes)

    def _reserve(self, offset: int, nbytes: int) -> None:
        self.check_free(nbytes)
        try:
            with self._using_fd:
                os.posix_fallocate(self.fd, offset, nbytes)
        except OSError as error:
            raise self._too_little(nbytes) from error

    def _too_little(self, nbytes: int) -> OutOfMemory:
        return OutOfMemory(
            f"not enough shared memory: {format_bytes(nbytes)} needed, {format_bytes(self.free_bytes)} free on this "
            "host. Use smaller tensors or fewer ranks, or free memory."
        )


def _usual_heap(size: int, rest: int) -> int:
    """The bytes of each rank's heap unless a setting says: half of the machine's memory, or less below limits.

    size: the number of ranks. rest: the bytes of their arena without heaps.
    """
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    if (limit := _limit("ulimit -f")) is not None:
        most = min(most, (limit - rest) // size)
    if (limit := _limit("ulimit -v")) is not None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        most = min(most, ((limit - used) // _SHARE - rest) // size)
    return max(PAGE, most // PAGE * PAGE)


def _limit(command: str) -> int | None:
    """The limit that this command of the shell sets for a process, in bytes; None: there is none."""
    from resource import RLIM_INFINITY, RLIMIT_AS, RLIMIT_FSIZE, getrlimit  # few processes need it

    limit, _ = getrlimit(RLIMIT_FSIZE if command == "ulimit -f" else RLIMIT_AS)
    return None if limit == RLIM_INFINITY else limit


def _available_bytes() -> int:
    """The smallest number of free bytes: of the host, and of this process's control groups."""
    free = 1 << 62
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
    of_group = free_bytes()
    return free if of_group is None else min(free, of_group)
