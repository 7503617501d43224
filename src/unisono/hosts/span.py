"""What a group over several hosts has besides shared memory: a carrier, and news of the other hosts."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from ..base.errors import ArgumentError
from ..base.records import Departure
from ..engine.carrier import Carrier
from ..engine.compile.plan import CallPlan
from ..engine.memory.board import SENTINEL_ENDED
from ..engine.memory_order import order
from ..observe.traces.recording import RecordedAt
from ..schedule import Hosts
from .far import Far

_ASK_S = 0.0005
_COUNT = (1 << 32) - 1
"""The part of `Arena.news` that counts."""


class SpanningCall(Protocol):
    """A call that has begun; see `calls.dispatch.over_hosts.hosts_run`.

    compares: are ranks of other hosts compared with this one?
    details: what a WaitTimeout says about the call.
    failure: what has ended the call, or None.
    """

    details: str
    failure: BaseException | None

    @property
    def compares(self) -> bool: ...

    def drop(self, *, refused: bool) -> None:
        """Leave the call as it is, for good. refused: the group goes on.

        Raises OutOfMemory if too little memory is left to go on.
        """


class Span:
    """One group over several hosts, as one of its ranks sees it.

    hosts: the hosts of the group's ranks.
    gid: the group's number, the same on all ranks.
    carrier: takes messages to ranks of the world.
    name: the name of this host.
    local: the group of the ranks on this host, once a call has needed it.
    call: the call that is made now.
    plan: makes plans, which a `Relay` runs, from the group's first call on.
    seen: a word, `Arena.news` when this group last looked.
    """

    def __init__(self, hosts: Hosts, rank: int, gid: int, carrier: Carrier, far: Far, name: str = "") -> None:
        if not hosts.spans:
            raise ArgumentError("a group on one host spans nothing")
        self.name = name
        self.hosts, self.rank, self.gid, self.carrier, self.far = hosts, rank, gid, carrier, far
        self.here = hosts.beside(rank)
        self.local: Any = None
        self.call: SpanningCall | None = None
        self.plan: Callable[..., CallPlan] | None = None
        self.keeps_refused: Callable[[Iterable[object]], object] | None = None
        """Keeps the tensors that a carrier may still send after a mismatch has refused a call; None: there are none."""
        self.resources: dict[Any, Any] = {}
        """Owner -> what it keeps from one call to the next."""
        self.kept: dict[Any, Any] = {}
        """For calls with even and with odd numbers: their memory, and the steps of calls that may be made again."""
        self.news, self.seen = far.news, ctypes.c_int64()

    @property
    def recorded_at(self) -> RecordedAt:
        """The place of this rank's records of its calls."""
        return RecordedAt(self.gid, self.hosts.host_of(self.rank), self.name)

    def register(self, start: int, members: Sequence[int]) -> None:
        """Let the sentinel bring the boards of members on other hosts. start: of the group's region in the arena."""
        self.far.register(self.gid, start, members)

    def ask(self) -> int:
        """Ask for fresh copies of boards on other hosts; does not wait. See `Far.ask`."""
        return self.far.ask(self.gid)

    def refresh(self, deadline: float) -> bool:
        """Wait for fresh copies of boards on other hosts. False if they have not come by the deadline."""
        ticket = self.ask()
        while not self.far.answered(ticket):
            if time.monotonic() > deadline:
                return False
            time.sleep(_ASK_S)
            self.ask()
        return True

    def must_look(self) -> bool:
        """Have boards of the world, perhaps of this group, got urgent news since the last call of this method?"""
        before, now = self.seen.value, self.news.value
        order()
        self.seen.value = now
        return now & _COUNT > before & _COUNT or now >= SENTINEL_ENDED > before

    def explain(self, how: Departure) -> Departure:
        """How a rank of another host has gone, with a note if this host is cut off."""
        cut = self.far.cut_off
        return how if not cut or cut in how.words else how._replace(words=f"{how}, and {cut},")

    def tell(self) -> None:
        """Let the other hosts know at once what this rank has written on its board."""
        self.far.wake(self.gid)

    def forget(self) -> None:
        """Get no more news of the group from the sentinel."""
        self.far.forget(self.gid)

    def is_free(self) -> bool:
        """Have all ranks on this host forgotten the group, so that its memory can be used for something else?"""
        return self.far.is_free(self.gid)

    def close(self, *, whole: bool, failed: bool) -> None:
        """The group is used no more on this rank.

        whole: no other group of this world is used any more either.
        failed: a call has failed, so peers may never take the sent messages.
        """
        if self.local is not None:
            self.local.close()
        for turn in self.kept.values():
            turn.close()
        self.kept.clear()
        self.resources.clear()
        if whole:
            (self.carrier.abort if failed else self.carrier.close)()
            self.far.close()
