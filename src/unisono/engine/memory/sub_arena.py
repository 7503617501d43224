"""The shared memory of a sub-group: a region of the world's arena, which all ranks have mapped already.

The region comes from the heap of the lender: on each host the first member that has room. The other members read where
it is in the lender's `RegionTable`. A member that leaves says so on its board in the region, and does not wait. When
all members have left or died, each drops what it kept for the others, such as messages, and says so on its board, too.
Then the lender frees the region. Members take these steps when they make and close groups.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b

from ...base.errors import InternalError, OutOfMemory
from ...base.records import DepartureKind
from ...base.units import ranks_text
from ..compile.program import LineWord
from ..memory_order import order
from ..process.alive import lives
from .arena import ENTRIES, KEY_BYTES, NO_ROOM, Arena, Layout
from .board import PAGE, Board
from .heap import Heap

_MOST_NAMED = 6


def group_key(*parts: object) -> bytes:
    """The key by which the members of a group find its memory."""
    return blake2b(repr(parts).encode(), digest_size=KEY_BYTES).digest()


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
        self.settled: Callable[[], bool] = lambda: True
        """Has this rank no messages any more that come into this memory?"""
        self.returned = False
        """Has its lender freed it?"""
        self._kept: object = None

    def awaits_mail(self, rank: int) -> int:
        """A word in the memory of the world: messages may still come when this region has ended."""
        return self.lender.arena.awaits_mail(self.members[rank])

    @property
    def is_found(self) -> bool:
        """Does no member look for this memory any more, because it uses it, has died, or the memory is free again?"""
        return self.returned or all(self.used_by(rank) or not _lives(self.board(rank)) for rank in self.here)

    def used_by(self, rank: int) -> bool:
        """Has this member begun to use this memory?"""
        joined: int = self.words(self.control(rank), LineWord.JOINED + 1)[LineWord.JOINED]
        order()
        return joined != 0

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
            if not self.settled() or (self._kept is not None and not self._all(lambda board: board.gone is not None)):
                return False
            self._kept = None
            mine.let_go = 1
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
        self._announced: weakref.WeakValueDictionary[int, SubArena] = weakref.WeakValueDictionary()
        """Entry of this rank's table -> the region there."""
        self._entry = 0
        """The entry that was written last."""
        self._made: Counter[bytes] = Counter()
        self._refused: Counter[bytes] = Counter()
        """Key -> how often no member of this host had room. Each time is a search of its own, with a key of its own."""
        self._lock = threading.Lock()

    def key(self, name: str, members: Sequence[int], parent: int = 0) -> bytes:
        """The key of the next group of this name and these ranks: the same on all members that make the same groups.

        parent: the number of the group that they make it of. All ranks make the groups of one parent in one order. Two
        threads may make groups of two parents in any order.
        """
        made = group_key(name, tuple(members), parent)
        with self._lock:
            self._made[made] += 1
            return group_key(made, self._made[made])

    def memory(self, key: bytes, members: Sequence[int], rank: int, here: Sequence[int]) -> SubArena | int:
        """The memory of the group with this key; or the number of the member that is to lend it, but has not yet.

        It is this rank's own number while this rank's table is full of groups that other members have not joined yet.
        Raises OutOfMemory, on all members of this host, if none of them has room; they may ask again then.

        members: the ranks of the group. rank: the number of this one. here: the numbers of those on this host.
        """
        search = group_key(key, self._refused[key])
        for number in here:
            start = self.arena.region_table(members[number]).find(search)
            if start is None and number == rank:
                sub = self._lend_and_announce(search, members, rank, here)
                if sub is not None:
                    return sub
                if len(here) > 1 and self.arena.region_table(members[rank]).find(search) is None:
                    return number
            elif start is None:
                return number
            elif start != NO_ROOM:
                return self.borrow(start, members, rank, number, here)
        self._refused[key] += 1
        full = ranks_text([members[number] for number in here], _MOST_NAMED)
        raise OutOfMemory(
            f"the shared memory of {full} is too full for a group of {len(members)} ranks. Free tensors there first, "
            "or start the job with more UNISONO_HEAP_BYTES."
        )

    def _lend_and_announce(self, key: bytes, members: Sequence[int], rank: int, here: Sequence[int]) -> SubArena | None:
        """Lend a group memory, and tell members on this host where. None: there is no room, or the table is full."""
        sub, told = None, False
        try:
            with suppress(OutOfMemory):
                sub = self.lend(members, rank, here)
            told = len(here) == 1 or self.announce(key, sub)
            return sub if told else None
        finally:  # also after Ctrl-C. Once it is announced, others may use it, and this rank finds it again
            if sub is not None and not told and self.arena.region_table(members[rank]).find(key) is None:
                self.take_back(sub)

    def lend(self, members: Sequence[int], rank: int = 0, here: Sequence[int] | None = None) -> SubArena:
        """Allocate zeroed memory for a group, as in `memory`; here None: all members. Raises OutOfMemory."""
        needs = Layout(len(members), self.arena.half)
        sub = SubArena(self, self.heap.lend(needs.end, needs.head), members, rank, rank, here)
        for number in sub.here:
            there = self.arena.board(members[number])
            sub.board(number).set_process(there.pid, there.ticks)  # it may die before it can say so itself
        return sub

    def announce(self, key: bytes, sub: SubArena | None) -> bool:
        """Tell the other members of a group where this rank has lent it memory; None: there is no room.

        False: the table is full of groups that other members have not joined yet.
        """
        with self._lock:
            for entry in ((self._entry + k) % ENTRIES for k in range(1, ENTRIES + 1)):
                before = self._announced.get(entry)
                if before is None or before.is_found:
                    break
            else:
                return False
            self._entry = entry
            self._announced.pop(entry, None)
            if sub is not None:
                self._announced[entry] = sub
            self.arena.region_table(self.heap.rank).write(entry, key, NO_ROOM if sub is None else sub.start)
            return True

    def borrow(
        self, start: int, members: Sequence[int], rank: int, of: int = 0, here: Sequence[int] | None = None
    ) -> SubArena:
        """The region that member number `of` has lent. Raises InternalError if it is not in that member's heap."""
        lender, needs = members[of], Layout(len(members), self.arena.half).end
        first = self.arena.heap(lender) - self.arena.base
        if start % PAGE or not first <= start <= first + self.arena.heap_bytes - needs:
            raise InternalError(
                f"the memory that rank {lender} has lent to a group of {len(members)} ranks begins at byte {start}, "
                "outside of its heap. A program has overwritten shared memory, or the ranks run different versions."
            )
        return SubArena(self, start, members, rank, of, here)

    def take_back(self, sub: SubArena) -> None:
        """Free a region that no rank uses any more."""
        sub.returned = True
        self.heap.take_back(sub.start, sub.end - sub.start)

    def collect(self) -> None:
        """Settle the regions that this rank has left."""
        with suppress(IndexError):  # another thread does so, too
            for _ in range(len(self.left)):
                sub = self.left.popleft()
                if not sub.settle():
                    self.left.append(sub)
