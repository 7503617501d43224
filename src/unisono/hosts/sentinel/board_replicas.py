"""Copies of control lines and boards of a group's members on other hosts: asked for, or pushed.

A rank asks with a ticket. The ticket comes back once every living host has answered a question that was sent after the
rank had asked. A rank's urgent news is pushed, and sent again until it is acknowledged: then the other host has copied
the page, or keeps it for ranks that do not use the group yet. Until then no ticket of the group comes back. So no rank
bases a decision of several ranks on news that would be lost if this host died.

Datagrams get lost and overtake each other, so an answer does not build on earlier ones: it has whole pages. A host that
has forgotten a group keeps its last pages for such answers.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from .regions import Regions
from .wire import Ack, Body, MemberPage, Pages, Query, batches

_AGAIN_S, _MOST_S = 0.02, 0.32
_PACE_S = 0.0002  # the least time, per host, from one question to the next
_MOST_KEPT = 1024
"""The most groups with pages that are kept before a rank here uses the group. Also the most forgotten groups with last
pages. The oldest ones go first: a rank that comes later asks for such pages, if their host still lives.
"""


class _Group:
    """A group that ranks of this host use. hosts: other host -> its members."""

    def __init__(self, start: int, members: tuple[int, ...], hosts: dict[int, tuple[int, ...]]) -> None:
        self.start, self.members, self.hosts = start, members, hosts
        self.users, self.forgotten = set[int](), set[int]()
        """The ranks here that use the group, and those that use it no more."""
        self.stamps = [0] * len(members)
        """Member -> the newest page that has been copied."""
        self.pushed: dict[int, bytes] = {}
        """Member here -> the line and the board that were pushed last."""


class _Pull:
    """A question that is under way. missing: host -> the members without a page yet."""

    def __init__(self, request: int, missing: dict[int, set[int]], askers: list[tuple[int, int]], due: float) -> None:
        self.request, self.missing, self.askers, self.due, self.wait_s = request, missing, askers, due, _AGAIN_S


class _Unread:
    """A page that was pushed to a host, and is not acknowledged yet. stamp: the page's, when it was first sent."""

    def __init__(self, stamp: int, due: float) -> None:
        self.stamp, self.due, self.wait_s = stamp, due, _AGAIN_S


class Copies:
    """The groups of this host `me`, and the questions and pages that are under way for them.

    host_of: rank -> its host.
    send: sends a message to a host.
    tell: sends a message to a rank here.
    """

    def __init__(
        self,
        me: int,
        host_of: Sequence[int],
        memory: Regions,
        send: Callable[[int, Body], None],
        tell: Callable[[int, list[object]], None],
    ) -> None:
        self._me, self._host_of, self._memory, self._send, self._tell = me, host_of, memory, send, tell
        self._groups: dict[int, _Group] = {}
        self._forgotten: dict[int, tuple[MemberPage, ...]] = {}  # forgotten group -> the last pages of its members here
        self._early: dict[int, dict[int, tuple[int, MemberPage]]] = {}
        """Pages of groups that no rank here uses yet: group -> member -> the sender, and the newest page."""
        self._pulls: dict[int, _Pull] = {}
        self._asked: dict[int, tuple[float, list[tuple[int, int]]]] = {}
        """Group -> the next question: its earliest time, and the ranks and tickets that ask."""
        self._unread: dict[tuple[int, int, int], _Unread] = {}
        self._newest = 0  # the newest stamp, or number of a question
        self.changes = 0
        """How often that has changed which another process would have to know to go on."""
        self._gone_hosts: set[int] = set()
        self._gone_ranks: set[int] = set()

    def register(self, rank: int, gid: int, start: int, members: Sequence[int]) -> None:
        """A rank of this host uses a group. Raises ValueError if this contradicts known facts."""
        group = self._groups.get(gid)
        if gid in self._forgotten:  # all ranks here have forgotten it, and this one has not heard of that yet
            self._tell(rank, ["forgotten", gid])
            return
        if group is None:
            if len(set(members)) != len(members) or not all(0 <= member < len(self._host_of) for member in members):
                raise ValueError(f"invalid members of a group: {members}")
            self._memory.add(gid, start, len(members))
            hosts: dict[int, tuple[int, ...]] = {}
            for member, world_rank in enumerate(members):
                host = self._host_of[world_rank]
                hosts[host] = (*hosts.get(host, ()), member)
            group = self._groups[gid] = _Group(start, tuple(members), hosts)
        if (start, tuple(members)) != (group.start, group.members) or rank not in members:
            raise ValueError(f"group {gid} has another start or other members")
        group.users.add(rank)
        self.changes += 1
        for sender, page in self._early.pop(gid, {}).values():
            self._copy(group, gid, sender, page)

    def forget(self, rank: int, gid: int) -> None:
        """A rank of this host uses a group no more. The last rank hears when the sentinel has left the memory."""
        group = self._groups.get(gid)
        if group is not None and rank in group.users:
            group.users.discard(rank)
            group.forgotten.add(rank)
            self.changes += 1
            self._drop_unused(gid)

    def forget_all(self, rank: int) -> None:
        """A rank of this host uses no group any more."""
        for gid in list(self._groups):
            self.forget(rank, gid)

    def rank_gone(self, rank: int) -> None:
        """A rank has gone. Its pages stay readable, unless all other ranks have forgotten the group."""
        self._gone_ranks.add(rank)
        for gid in [gid for gid, group in self._groups.items() if group.forgotten]:
            self._drop_unused(gid)

    def _drop_unused(self, gid: int) -> None:
        group = self._groups[gid]
        here = {group.members[member] for member in group.hosts[self._me]}
        if here - group.forgotten - self._gone_ranks:
            return
        self._forgotten[gid] = self._pages_here(gid)
        del self._groups[gid]
        self._pulls.pop(gid, None)
        self._asked.pop(gid, None)
        self._memory.remove(gid)
        _drop_oldest(self._forgotten)
        for rank in here:
            self._tell(rank, ["forgotten", gid])

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_memory": None}

    def take_over(self, memory: Regions, first: int) -> None:
        """Go on in place of a process that may have used more numbers, up to `first`."""
        self._memory = memory
        self._newest = first
        for gid, group in self._groups.items():
            self._memory.add(gid, group.start, len(group.members))

    def ask(self, rank: int, gid: int, ticket: int, now: float) -> None:
        """A rank asks for fresh copies. The ticket comes back as `fresh`."""
        if gid not in self._groups:
            return
        not_before, askers = self._asked.setdefault(gid, (now, []))
        askers.append((rank, ticket))
        if gid not in self._pulls and not_before <= now:
            self._begin(gid, now)

    def _begin(self, gid: int, now: float) -> None:
        group, (_, askers) = self._groups[gid], self._asked[gid]
        far = {host: set(members) for host, members in group.hosts.items() if host not in self._gone_hosts}
        far.pop(self._me, None)
        self._asked[gid] = now + _PACE_S * len(far), []
        self._pulls[gid] = pull = _Pull(self._next(), far, askers, now + _AGAIN_S)
        for host in far:
            self._send(host, Query(gid, pull.request))
        self._end_if_complete(gid, now)

    def _end_if_complete(self, gid: int, now: float) -> None:
        pull = self._pulls[gid]
        if any(pull.missing.values()) or any(of == gid for _, of, _ in self._unread):
            return
        del self._pulls[gid]
        for rank, ticket in pull.askers:
            self._tell(rank, ["fresh", ticket])
        not_before, askers = self._asked[gid]
        if askers and not_before <= now:
            self._begin(gid, now)

    def question(self, sender: int, question: Query) -> None:
        """Another host asks for the pages of the members here."""
        gid, request = question
        for batch in list(batches(self._pages_here(gid))) or [()]:
            self._send(sender, Pages(gid, request, batch))

    def _next(self) -> int:
        self._newest += 1
        return self._newest

    def _pages_here(self, gid: int) -> tuple[MemberPage, ...]:
        """The pages of the members here, as they are now, or the last ones."""
        if (group := self._groups.get(gid)) is None:
            return self._forgotten.get(gid, ())
        return tuple(
            MemberPage.of(member, self._next(), self._memory.read(gid, member)) for member in group.hosts[self._me]
        )

    def pages(self, sender: int, body: Pages, now: float) -> None:
        """Pages have come from another host."""
        gid, request, pages = body
        group, pull = self._groups.get(gid), self._pulls.get(gid)
        answered = set()
        for page in pages:
            if group is not None and self._copy(group, gid, sender, page):
                answered.add(page.member)
            if request == 0 and page.member < len(self._host_of):
                if group is None and gid not in self._forgotten:
                    self._keep(gid, sender, page)
                self._send(sender, Ack(gid, page.member, page.stamp))
        if request == 0 and answered:
            self._memory.count_news()
        if group is None or pull is None or pull.request != request or sender not in pull.missing:
            return
        if not pages and {group.members[member] for member in group.hosts[sender]} <= self._gone_ranks:
            pull.missing[sender].clear()  # the members there have never used the group
        pull.missing[sender] -= answered
        self._end_if_complete(gid, now)

    def _keep(self, gid: int, sender: int, page: MemberPage) -> None:
        """Keep a page of a group that no rank here has used yet."""
        self.changes += 1
        pages = self._early.setdefault(gid, {})
        if page.member not in pages or page.stamp > pages[page.member][1].stamp:
            pages[page.member] = sender, page
        _drop_oldest(self._early)

    def _copy(self, group: _Group, gid: int, sender: int, page: MemberPage) -> bool:
        """Make a member's line and board equal to this page. False if the member is not on the sender's host."""
        if page.member not in group.hosts.get(sender, ()):
            return False
        if page.stamp > group.stamps[page.member]:
            keep_gone = group.members[page.member] in self._gone_ranks
            group.stamps[page.member] = page.stamp
            with suppress(ValueError):  # the page has no image
                self._memory.write(gid, page.member, page.image, keep_gone=keep_gone)
        return True

    def push(self, rank: int, only: int | None, now: float) -> None:
        """Send a rank's page of this group, or the pages of all its groups, if they are new."""
        for gid, group in self._groups.items():
            if rank not in group.users or only not in (None, gid):
                continue
            member = group.members.index(rank)
            image = self._memory.read(gid, member)
            if group.pushed.get(member) == image:
                continue
            group.pushed[member] = image
            self._memory.count_news()
            page = MemberPage.of(member, self._next(), image)
            for host in group.hosts:
                if host != self._me and host not in self._gone_hosts:
                    self._unread[host, gid, member] = _Unread(page.stamp, now + _AGAIN_S)
                    self._send(host, Pages(gid, 0, (page,)))

    def ack(self, sender: int, ack: Ack, now: float) -> None:
        """Another host has a page that was pushed."""
        key = (sender, ack.gid, ack.member)
        if key in self._unread and self._unread[key].stamp <= ack.stamp:
            del self._unread[key]
            if ack.gid in self._pulls:
                self._end_if_complete(ack.gid, now)

    def drop_host(self, host: int, now: float) -> None:
        """A host is lost or has left: no question waits for it any more."""
        self._gone_hosts.add(host)
        self._unread = {key: unread for key, unread in self._unread.items() if key[0] != host}
        for gid in list(self._pulls):
            self._pulls[gid].missing.pop(host, None)
            self._end_if_complete(gid, now)

    @property
    def settled(self) -> bool:
        """Have all pushed pages arrived?"""
        return not self._unread

    def tick(self, now: float) -> None:
        """Begin the questions that may follow now. Send unanswered questions and pages again."""
        for gid, (not_before, askers) in list(self._asked.items()):
            if askers and gid not in self._pulls and not_before <= now:
                self._begin(gid, now)
        for gid, pull in self._pulls.items():
            if pull.due <= now:
                pull.wait_s = min(2 * pull.wait_s, _MOST_S)
                pull.due = now + pull.wait_s
                for host in [host for host, members in pull.missing.items() if members]:
                    self._send(host, Query(gid, pull.request))
        for (host, gid, member), unread in list(self._unread.items()):
            if unread.due <= now:
                unread.wait_s = min(2 * unread.wait_s, _MOST_S)
                unread.due = now + unread.wait_s
                # As it is now: so of two pages that come, the one in the later datagram is the newer one.
                pages = tuple(page for page in self._pages_here(gid) if page.member == member)
                self._send(host, Pages(gid, 0, pages))
                if not pages:
                    del self._unread[host, gid, member]

    def wake_at(self) -> float:
        """The time of the next tick that has work."""
        times = [pull.due for pull in self._pulls.values()] + [unread.due for unread in self._unread.values()]
        times += [when for gid, (when, askers) in self._asked.items() if askers and gid not in self._pulls]
        return min(times, default=float("inf"))


def _drop_oldest(kept: dict[int, Any]) -> None:
    if len(kept) > _MOST_KEPT:
        del kept[next(iter(kept))]
