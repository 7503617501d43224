"""What a group over several hosts has besides shared memory: a carrier, and news of the other hosts."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from ..base.errors import ArgumentError
from ..base.records import Departure
from ..engine.carrier import Carrier, Handle, Lost
from ..engine.memory_order import order
from ..observe.traces.recording import RecordedAt
from ..schedule import Hosts
from .far import Far

_ASK_S = 0.0005


class SpanningCall(Protocol):
    """A call that has begun; see `calls.dispatch.over_hosts.relay`. failure: what has ended it, or None."""

    failure: BaseException | None

    def drop(self) -> None:
        """Leave the call as it is, for good."""


class Span:
    """One group over several hosts, as one of its ranks sees it.

    hosts: the hosts of the group's ranks.
    gid: the group's number, the same on all ranks.
    carrier: takes messages to ranks of the world.
    name: the name of this host.
    call: the call that is made now.
    served: has the group a `Relay`? It has one from its first call on.
    seen: a word, `Arena.news` when this group last looked.
    """

    def __init__(self, hosts: Hosts, rank: int, gid: int, carrier: Carrier, far: Far, name: str = "") -> None:
        if not hosts.spans:
            raise ArgumentError("hosts: got one host, expected several")
        self.name = name
        self.hosts, self.rank, self.gid, self.carrier, self.far = hosts, rank, gid, carrier, far
        self.here = hosts.beside(rank)
        self.call: SpanningCall | None = None
        self.served = False
        self.late: list[Handle] = []
        """Receives of calls that have failed, whose messages still come in: their memory is not free."""
        self.resources: dict[Any, Any] = {}
        """Owner -> what it keeps from one call to the next."""
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
        return now > before

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

    def is_settled(self) -> bool:
        """Does no message to this rank still come into the group's memory?"""
        return not self.still_late()

    def still_late(self) -> list[Handle]:
        """What of `late` still comes in. What has been taken back, or is lost, never does."""
        self.late = [handle for handle in self.late if self._comes(handle)]
        return self.late

    def _comes(self, handle: Handle) -> bool:
        with suppress(Lost):
            return bool(self.carrier.pending([handle]))
        return False

    def close(self, *, whole: bool, failed: bool) -> None:
        """The group is used no more on this rank.

        whole: no other group of this world is used any more either.
        failed: a call has failed, so peers may never take the sent messages.
        """
        self.resources.clear()
        if whole:
            (self.carrier.abort if failed else self.carrier.close)()
            self.far.close()
