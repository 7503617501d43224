"""The progress loop of a group: it moves the messages of all requests while a thread waits for one of them."""

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...base.errors import NotInitialized, OutOfMemory, PeerError, PeerFailed, PeerGone
from ...base.records import Departure, DepartureKind, GivenUp
from ...engine.mailbox import ANY_SOURCE, CarrierStreams, FarPeers, Mailbox, MessageRequest, Receive
from ...engine.process.nested import check_nested, holds
from ...hosts.carriers.waiter import SentMessages
from ...ranks.failures.stall import Stall
from ...ranks.group.abort import check_abort
from ...ranks.group.group import Group
from ...ranks.group.survivors import check_left_out
from .at_once import stop

Result = TypeVar("Result")

_LAST_NEWS_S = 0.5
"""After a silence of this length, all messages of a rank on another host that has gone or failed count as arrived."""
_CUT_S = 2.0  # a rank that no other rank reports gone counts as gone once its connection has been lost for _CUT_S
_ALONE = " Only this rank itself can send that message: call isend() before, or send() in another thread."


class ProgressLoop:
    """Starts, advances, awaits and cancels the requests of one group.

    Any waiting thread runs the loop for all requests of the group, then sleeps until a ring changes. A lock lets one
    thread at a time use the mailbox; sleeping needs none. `call`, in all methods, makes the text that errors show.
    """

    def __init__(self, group: Group) -> None:
        self._group = weakref.ref(group)  # the group holds this: a cycle would leave both to the garbage collector
        self._world_ranks = group.named
        arena = group.host.arena
        self._look_up_s = group.host.config.look_up_s
        host, far = group.host, _far_peers(group)
        self.mailbox = Mailbox(arena, host.heap, group.rank, host.most_spins, self._world_ranks, far)
        self._poller = self.mailbox.poller
        self._noticed_at: dict[tuple[int, int], float] = {}
        """(run, rank) -> when this rank first found that the rank, on another host, has gone or failed."""

    @property
    def group(self) -> Group:
        """The group. Raises NotInitialized if the program has dropped it."""
        group = self._group()
        if group is None:
            raise NotInitialized("the group of this call has been dropped; call unisono.new_group() for a new one")
        return group

    def start(self, request: MessageRequest) -> bool:
        """Start a request; True if it is done already. Raises OutOfMemory."""
        self._locked(self.mailbox.submit, request)
        return request.done

    def advance(self, request: MessageRequest) -> bool:
        """Move messages of all requests until this one is done, or no bytes can move; True if it is done."""
        return self._locked(self._advance, request)

    def cancel(self, request: MessageRequest) -> MessageRequest | None:
        """Take a request out, unless it is done; see `Mailbox.cancel` for what is returned."""
        return self._locked(self.mailbox.cancel, request)

    def fail(self, request: MessageRequest, error: PeerError) -> MessageRequest | None:
        """End a request with an error, unless it is done; see `Mailbox.cancel` for what is returned."""
        return self._locked(self.mailbox.fail, request, error)

    def wait(
        self, request: MessageRequest, call: Callable[[], str], timeout_s: float | None = None, began: float = 0.0
    ) -> None:
        """Return when a request is done. Raises WaitTimeout after timeout_s (None: the group's) and lets it go on.

        began: when the call has begun to wait, by the monotonic clock; 0: now.
        """
        began = changed_at = began or time.monotonic()
        allowed_s = self.group.timeout_s if timeout_s is None else timeout_s
        check_at = began + self._look_up_s
        stall: Stall | None = None
        try:
            while True:
                wakeups = self._poller.wakeups
                if self.advance(request):
                    return
                now = time.monotonic()
                limit_s = min(self._look_up_s, max(0.0, began + allowed_s - now))
                changed = self._poller.wait(wakeups, now - changed_at, limit_s)
                now = time.monotonic()
                if changed:
                    changed_at = now
                if now > check_at or now - began >= allowed_s:
                    check_at = now + self._look_up_s
                    if self.check_peers(request, call):
                        return
                    stall = stall or Stall(self.group, call(), any_of=True)
                    needed = self._needed(request, self.group)
                    if now - began >= allowed_s:
                        raise stall.late(needed, now - began, self._said(request, needed))
                    stall.look(needed, now - began)
        except PeerFailed as error:
            if not error.call:  # another thread of this rank has aborted the group: the error is for all its calls
                check_abort(self.group, call)
            raise
        finally:
            if stall is not None:
                stall.end()

    def check_peers(self, request: MessageRequest, call: Callable[[], str], *, awaited: bool = True) -> bool:
        """Fail a request with a PeerError if no rank that it needs can serve it any more; True if it is done.

        awaited: a thread waits for the request, and for nothing else. Otherwise this rank may still send the message
        that a receive waits for. Raises PeerFailed if the group has been aborted.
        """
        group = self.group
        if group.span is not None:
            group.span.ask()
            self._locked(self.mailbox.listen_to_all)
        lost = self._lost(request, group, awaited)
        check_abort(group, call)  # after the look: a peer that hears of it earlier gives up, or leaves
        if lost is None or self.advance(request):  # messages that a rank sent before it went can still be received
            return request.done
        check_left_out(group)
        self.fail(request, self._error(*lost, call()))
        return True

    def _locked(self, action: Callable[..., Result], *arguments: Any) -> Result:
        """Use the mailbox, then call `on_done` of the requests that have finished meanwhile."""
        result, finished = self._use(action, *arguments)
        for done in finished:
            if done.on_done is not None:
                on_done, done.on_done = done.on_done, None
                on_done()
        return result

    @holds("mailbox")
    def _use(self, action: Callable[..., Result], *arguments: Any) -> tuple[Result, list[MessageRequest]]:
        """Use the mailbox. Returns the requests that have finished meanwhile, too."""
        group, mailbox = self.group, self.mailbox
        if mailbox.lock.locked():
            check_nested(mailbox, f"the messages of {group}")
        with mailbox.lock:
            group.check_usable()
            try:
                mailbox.settle()
                result = action(*arguments)
            except OutOfMemory:
                raise  # before anything has moved
            except BaseException as error:
                stop(group, error)
                raise
            finished, mailbox.finished = mailbox.finished, []
        return result, finished

    def _advance(self, request: MessageRequest) -> bool:
        while not request.done and self.mailbox.progress():
            pass
        return request.done

    def _needed(self, request: MessageRequest, group: Group) -> list[int]:
        """The peers that can serve a request; any one of them is enough. Empty if only this rank itself can send it."""
        message = request.message if isinstance(request, Receive) else None
        if message is not None:
            return [message.source]
        ranks = range(group.size) if request.peer == ANY_SOURCE else [request.peer]
        return [rank for rank in ranks if rank != group.rank]

    def _lost(self, request: MessageRequest, group: Group, awaited: bool) -> tuple[int, Departure | GivenUp] | None:
        """The rank because of which a request cannot be served, and how it has gone or failed; None: no rank.

        If several ranks could serve it, one that died or failed is enough; otherwise all of them must be gone.
        """
        ranks, went = self._needed(request, group), []
        for rank in ranks:
            how: Departure | GivenUp = group.liveness.gone(rank) or group.host.arena.board(rank).gave_up
            if isinstance(how, GivenUp) and not how.number:
                how = self._cut(rank) or how
            # A rank that gave a call up refuses all later ones.
            if (isinstance(how, Departure) or how.number) and not self._may_come(request, rank, how):
                went.append((rank, how))
        hopeless = len(went) == len(ranks) and (awaited or request.peer != ANY_SOURCE)
        for rank, how in went:
            if hopeless or isinstance(how, GivenUp) or not how.in_order:
                return rank, how
        return None

    def _cut(self, rank: int) -> Departure | None:
        """The departure of a rank that this rank no longer reaches, though no rank reports it gone."""
        cut = self.mailbox.cut(rank)
        if cut is None or time.monotonic() - cut[1] < _CUT_S:
            return None
        return Departure(DepartureKind.DIED, f"cannot be reached any more: {cut[0]}")

    def _may_come(self, request: MessageRequest, rank: int, how: Departure | GivenUp) -> bool:
        """May bytes still arrive that a rank on another host sent before it went: a message, or an acknowledgement?"""
        group, stream = self.group, self.mailbox.stream_from(rank)
        if group.span is None or rank in group.span.here:
            return False
        if isinstance(how, Departure) and how.how in (DepartureKind.DIED, DepartureKind.ABORTED):
            return False
        if isinstance(request, Receive) and (stream is None or stream.ended or stream.lost):
            return False
        now, world = time.monotonic(), group.world
        run = world.host.arena.board(world.rank).run  # a rank that returned in an earlier run has sent messages since
        noticed_at = self._noticed_at.setdefault((run, rank), now)
        return now - max(noticed_at, stream.news_at if stream else 0.0) < _LAST_NEWS_S

    def _said(self, request: MessageRequest, ranks: Sequence[int]) -> str:
        """Text: messages of these ranks that a receive does not take. ranks: empty if only this rank can send one."""
        if not isinstance(request, Receive):
            return ""
        alone = "" if ranks else _ALONE
        ranks = ranks or [self.group.rank]
        tags = {rank: self._locked(self.mailbox.unexpected_tags, rank) for rank in ranks}
        sent = [f" Rank {rank} has sent tag {', '.join(map(str, tags[rank]))}." for rank in ranks if tags[rank]]
        return "".join([alone, *sent])

    def _error(self, rank: int, how: Departure | GivenUp, call: str) -> PeerError:
        group = self.group
        if isinstance(how, GivenUp):
            words = f"gave up group {group.name!r}: {how.reason}"
            return PeerFailed(rank, words, group.rank, call, self._world_ranks, whole=True)
        pid = group.host.arena.board(rank).pid
        if group.span is not None and rank not in group.span.here:
            how = group.span.explain(how)
        return PeerGone(rank, pid, how, group.rank, call, self._world_ranks, others=True)


def _far_peers(group: Group) -> FarPeers | None:
    """The members on other hosts; None: there is none."""
    world_span = group.world.span
    if group.span is None or world_span is None:
        return None
    far = frozenset(range(group.size)) - set(group.span.hosts.beside(group.rank))
    carrier = world_span.carrier
    traffic = world_span.resources.setdefault(CarrierStreams, CarrierStreams(carrier, SentMessages(carrier).add))
    return FarPeers(group.rank, far, group.world_ranks, group.span.gid, traffic)
