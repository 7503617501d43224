"""Threads that are ranks; `came`: their time is up when a test says so; and meetings that have begun."""

import secrets
import threading
from typing import Any

import pytest
from torch.distributed import PrefixStore, Store

from tests.support.waiting import until
from unisono.ranks.rendezvous import meeting
from unisono.ranks.rendezvous.entries import write
from unisono.ranks.rendezvous.identity import Identity
from unisono.ranks.rendezvous.meeting import Meeting, MeetingResult


def meet(*how: Any, **options: Any) -> MeetingResult:
    """What a rank has when all have met."""
    return Meeting(*how, **options).hold()


class Came(list[Meeting]):
    """The ranks' parts in meetings, as soon as others can see that they have come."""

    def of(self, rank: int) -> list[Meeting]:
        """The parts of one rank."""
        return [meeting for meeting in self if meeting._rank == rank]

    def time_is_up(self, *ranks: int) -> None:
        """Let the time of the last part of each of these ranks be up, as soon as all have come."""
        until(lambda: all(self.of(rank) for rank in ranks))
        for rank in ranks:
            self.of(rank)[-1]._deadline = 0.0


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> Came:
    """Who has come, from now on. No rank waits a second for a reason."""
    monkeypatch.setattr(meeting, "_REASON_S", 0.3)
    come, came = Meeting._come, Came()
    monkeypatch.setattr(Meeting, "_come", lambda self: (come(self), came.append(self)))
    return came


@pytest.fixture
def threads_are_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of this process pass for processes: each has an identity of its own, and the kernel is not asked."""
    mine = Identity.mine
    own = classmethod(lambda _cls, *how: mine(*how)._replace(pid=threading.get_ident(), ticks=0))
    monkeypatch.setattr(Identity, "mine", own)
    monkeypatch.setattr(Identity, "is_at", lambda _self, _channel: True)


def begun(store: Store, first: Identity) -> PrefixStore:
    """The part of the store of a meeting that this process has begun as rank 0."""
    store.set(meeting.NOTICE, write(first))
    return PrefixStore(first.listens_at, store)


def planned(store: Store, monkeypatch: pytest.MonkeyPatch) -> PrefixStore:
    """The part of the store of the meeting that rank 0, of this process, will begin."""
    mine, name = Identity.mine, f"unisono-{secrets.token_hex(16)}"
    monkeypatch.setattr(Identity, "mine", lambda *how: mine(*how)._replace(listens_at=name))
    return PrefixStore(name, store)
