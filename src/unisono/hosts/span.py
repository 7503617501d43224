"""What a group whose ranks are on several hosts has besides shared memory: a carrier, and news of the other hosts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from ..base.errors import ArgumentError
from ..schedule import Hosts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..base.records import Departure
    from ..engine.carrier import Carrier
    from ..observe.traces.recording import RecordedAt
    from .far import Far

_ASK_S = 0.0005


class _Steps(Protocol):
    """See `calls.dispatch.over_hosts.hosts_steps.Steps`."""

    @property
    def nbytes(self) -> int: ...

    def close(self) -> None: ...


class SpanningCall(Protocol):
    """A call that has begun; see `calls.dispatch.over_hosts.hosts_run`.

    compares: are ranks of other hosts compared with this one? details: what a WaitTimeout tells of it. failure: what
    has ended it, if anything has.
    """

    compares: bool
    details: str
    failure: BaseException | None

    def go_on(self) -> int:
        """Make it as far as it goes without a long wait: an outcome, see `engine.compile.program`."""

    def drop(self, *, refused: bool) -> None:
        """Leave it as it is, for good. refused: the group goes on. Raises OutOfMemory where it cannot."""


class Span:
    """One group over several hosts, as one of its ranks sees it.

    hosts: of the group's ranks. gid: the group's number, the same on all of them. carrier: takes messages to ranks of
    the world. name: of this host. local: the group of the ranks on this host, once a call has needed it. call: that is
    made now.
    """

    def __init__(self, hosts: Hosts, rank: int, gid: int, carrier: Carrier, far: Far, name: str = "") -> None:
        if not hosts.spans:
            raise ArgumentError("a group on one host spans nothing")
        self.name = name
        self.hosts, self.rank, self.gid, self.carrier, self.far = hosts, rank, gid, carrier, far
        self.here = hosts.beside(rank)
        self.local: Any = None
        self.call: SpanningCall | None = None
        self.keeps_refused: Callable[[Iterable[object]], object] | None = None
        """Keeps what may still be sent of a call that a mismatch has just refused; None: of this one nothing."""
        self.resources: dict[Any, Any] = {}
        """What calls keep from one to the next, by who keeps it."""
        self.kept: dict[Any, _Steps] = {}
        """The steps of calls that may be made again."""
        self._bad_news = 0

    @property
    def recorded_at(self) -> RecordedAt:
        """Where what this rank of the world keeps of its calls belongs."""
        from ..observe.traces.recording import RecordedAt

        return RecordedAt(self.gid, self.hosts.host_of(self.rank), self.name)

    def register(self, start: int, members: Sequence[int]) -> None:
        """Let the sentinel bring what the members on other hosts write. start: of the group's region in the arena."""
        self.far.register(self.gid, start, members)

    def ask(self) -> int:
        """Ask for what the members on other hosts have written by now; does not wait. See `Far.ask`."""
        return self.far.ask(self.gid)

    def refresh(self, deadline: float, enough: Callable[[], bool] = lambda: False) -> bool:
        """Wait for what the members on other hosts have written by now, or until what is here is enough. False if it
        has not come by the deadline.
        """
        ticket = self.ask()
        while not (self.far.answered(ticket) or enough()):
            if time.monotonic() > deadline:
                return False
            time.sleep(_ASK_S)
            self.ask()
        return True

    def has_bad_news(self) -> bool:
        """Has a rank of the world, perhaps of this group, gone since the last time this was asked?"""
        before, self._bad_news = self._bad_news, self.far.bad_news
        return self._bad_news > before

    def explain(self, how: Departure) -> Departure:
        """How a rank of another host has gone; if it is this host that is cut off, that too."""
        cut = self.far.cut_off
        return how if not cut or cut in how.words else how._replace(words=f"{how}, and {cut},")

    def tell(self) -> None:
        """Let the other hosts know at once what this rank has written on its board."""
        self.far.wake(self.gid)

    def forget(self) -> None:
        """Have no more news brought. Takes no lock."""
        self.far.forget(self.gid)

    def is_free(self) -> bool:
        """Has everybody on this host forgotten the group, so that its memory can be used for something else?"""
        return self.far.is_free(self.gid)

    def close(self, *, whole: bool, failed: bool) -> None:
        """The group is used no more on this rank. whole: neither is any other of this world. failed: a call has failed,
        so peers may never take what has been sent.
        """
        if self.local is not None:
            self.local.close()
        for steps in self.kept.values():
            steps.close()
        self.kept.clear()
        self.resources.clear()
        if whole:
            (self.carrier.abort if failed else self.carrier.close)()
            self.far.close()
