"""The shared memory of a sub-group: a region of the world's arena, which all ranks have mapped already.

The region comes from the heap of a member, the lender, mostly the first member. The other members read where it is in
the lender's `RegionTable`, or on its board if a group shrinks. A member that leaves says so on its board in the region,
and does not wait. When all members have left or died, each drops what it kept for the others, such as messages, and
says so on its board, too. Then the lender frees the region. Members take these steps when they make and close groups.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b

from ...base.errors import InternalError
from ...base.records import DepartureKind
from ..compile.program import LineWord
from ..helpers import Helpers
from ..memory_order import order
from ..process.alive import lives
from .arena import ENTRIES, KEY_BYTES, NO_ROOM, Arena, Layout
from .board import PAGE, Board
from .heap import Heap


class SubArena(Layout):
    """The region of an arena, from byte `start` on, of a sub-group.

    It has no heaps of its own: a rank's shared tensors work in all its groups.

    members: the ranks of the sub-group, in order.
    owner: the rank that has the region in its heap.
    here: the numbers of the members on this host: they use the region.
    """

    def __init__(
        self, lender: Lender, start: int, members: Sequence[int], rank: int, of: int, here: Sequence[int] | None = None
    ) -> None:
        arena = lender.arena
        super().__init__(len(members), arena.half, start)
        self.map, self.base, self.heap_bytes = arena.map, arena.base, arena.heap_bytes
        self.neighbours, self.processors = arena.neighbours, arena.processors
        self.heaps = [arena.heap(member) for member in members]
        self.shape = arena.shape
        self.lender, self.members, self.rank = lender, tuple(members), rank
        self.here = tuple(range(len(members)) if here is None else here)
        self.owner, self._mine = members[of], of == rank
        self.untouched: Callable[[], bool] = lambda: True
        """Have other writers, such as this host's sentinel, stopped to write here?"""
        self.returned = False
        """Has its lender freed it?"""
        self._kept: object = None

    def awaits_mail(self, rank: int) -> int:
        """A word in the memory of the world: messages may still come when this region has ended."""
        return self.lender.arena.awaits_mail(self.members[rank])

    @property
    def complete(self) -> bool:
        """Does every living member use this memory, so that no member looks for it any more?"""
        return all(self.used_by(rank) or not _lives(self.board(rank)) for rank in self.here)

    def used_by(self, rank: int) -> bool:
        """Has this member begun to use this memory?"""
        began = ctypes.c_int64.from_address(self.control(rank) + 8 * LineWord.WITNESS).value != 0
        order()
        return began

    def leave(self, kept: object = None) -> None:
        """Stop using this memory. kept: an object that must live until all members have left.

        Takes no lock, because the garbage collector may call this anywhere.
        """
        self._kept = kept
        self.board(self.rank).set_gone(DepartureKind.LEFT, "left the group")
        if not self.settle():
            self.lender.left.append(self)

    def settle(self) -> bool:
        """Free all that can be freed now. True if this rank has nothing left to do for this region."""
        mine = self.board(self.rank)
        if not mine.let_go:
            if self._kept is not None and not self._all(lambda board: board.gone is not None):
                return False
            self._kept = None
            mine.set_let_go()
        if not self._mine:
            return True  # from now on this memory may be another group's, of which this rank may be a member, too
        if self._all(lambda board: board.let_go) and self.untouched():
            self.lender.take_back(self)
            return True
        return False

    def _all(self, done: Callable[[Board], bool]) -> bool:
        """Is `done` true for the boards of all living members?"""
        return all(done(board) or not _lives(board) for board in map(self.board, self.here))


def _lives(board: Board) -> bool:
    """Is the process of this board there, or may it come yet?"""
    return not board.pid or lives(board.pid, board.ticks)


class Lender:
    """The regions that a rank has lent or uses. left: the regions that it has left and not settled yet."""

    def __init__(self, arena: Arena, heap: Heap) -> None:
        self.arena, self.heap = arena, heap
        self.plan_registry = arena.plan_registry(heap.rank)
        self.left: deque[SubArena] = deque()
        self._announced: list[weakref.ref[SubArena] | int | None] = [None] * ENTRIES
        """The entries of this rank's table: regions, or NO_ROOM."""
        self._groups: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self._helpers: list[Helpers] = []

    @property
    def helpers(self) -> Helpers:
        """The threads that help this rank, in all groups of this memory; made when they are first asked for."""
        if not self._helpers:
            self._helpers.append(Helpers(self.arena.size))
        return self._helpers[0]  # a thread that has asked at the same time gets the same

    def end_helpers(self) -> None:
        """End these threads, if there are any."""
        for helpers in self._helpers:
            helpers.end()

    def lend(self, members: Sequence[int], rank: int = 0, here: Sequence[int] | None = None) -> SubArena:
        """Allocate zeroed memory for a group of these ranks, of which this is number `rank`. Raises OutOfMemory.

        here: the members on this host, by their numbers in the group; None: all.
        """
        needs = Layout(len(members), self.arena.half)
        sub = SubArena(self, self.heap.lend(needs.end, needs.head), members, rank, rank, here)
        for number in sub.here:
            there = self.arena.board(members[number])
            sub.board(number).set_process(there.pid, there.ticks)  # it may die before it can say so itself
        return sub

    def key(self, name: str, members: Sequence[int], parent: int = 0) -> bytes:
        """The key of the next group of this name and these ranks: the same on all members that make the same groups.

        parent: the number of the group that they make it of. All ranks make the groups of one parent in one order. Two
        threads may make groups of two parents in any order.
        """
        made = blake2b(repr((name, tuple(members), parent)).encode(), digest_size=KEY_BYTES).digest()
        with self._lock:
            self._groups[made] += 1
            return blake2b(made, digest_size=KEY_BYTES, key=b"%d" % self._groups[made]).digest()

    def announce(self, key: bytes, sub: SubArena | None, rank: int) -> bool:
        """Tell the other members of a group where `rank`, of the world, has lent it memory; None: there is no room.

        False: the rank's table is full of groups that other members have not joined yet.
        """
        table = self.arena.region_table(rank)
        with self._lock:
            entry = self._free_entry()
            if entry is not None:
                self._announced[entry] = NO_ROOM if sub is None else weakref.ref(sub)
                table.write(entry, key, NO_ROOM if sub is None else sub.start)
        return entry is not None

    def _free_entry(self) -> int | None:
        """An entry that no member looks for any more, or else the entry of a group for which there was no room."""
        refused = None
        for entry, of in enumerate(self._announced):
            if of == NO_ROOM:
                refused = entry
                continue
            sub = of() if isinstance(of, weakref.ref) else None
            if sub is None or sub.returned or sub.complete:
                return entry
        return refused

    def borrow(
        self, start: int, members: Sequence[int], rank: int, of: int = 0, here: Sequence[int] | None = None
    ) -> SubArena:
        """The region that member number `of` has lent. Raises InternalError if it is not in that member's heap."""
        lender, needs = members[of], Layout(len(members), self.arena.half).end
        first = self.arena.heap(lender) - self.arena.base
        if start % PAGE or not first <= start <= first + self.arena.heap_bytes - needs:
            raise InternalError(
                f"rank {lender} says that the memory of a group of {len(members)} ranks begins at byte {start}, which "
                "is outside of its heap: a program has overwritten shared memory, or the ranks run different versions"
            )
        return SubArena(self, start, members, rank, of, here)

    def take_back(self, sub: SubArena) -> None:
        """Free a region that no rank uses any more."""
        sub.returned = True
        self.heap.take_back(sub.start, sub.end - sub.start)

    def collect(self) -> None:
        """Settle the regions that this rank has left."""
        for sub in _taken(self.left):
            if not sub.settle():
                self.left.append(sub)


def _taken(left: deque[SubArena]) -> Iterator[SubArena]:
    """Take each region once. Another thread may do so at the same time."""
    with suppress(IndexError):
        for _ in range(len(left)):
            yield left.popleft()
