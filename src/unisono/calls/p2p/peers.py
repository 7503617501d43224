"""`Peers`: the ranks that can serve a request, and what becomes of it when they have gone."""

import time

from ...base.errors import PeerError, PeerFailed, PeerGone
from ...base.records import Departure, DepartureKind, GivenUp
from ...engine.mailbox import ANY_SOURCE, CarrierStreams, FarPeers, Mailbox, MessageRequest, Receive
from ...ranks.group.group import Group

_LAST_NEWS_S = 2.0
"""After a silence of this length, all messages of a rank on another host that has gone or failed count as arrived."""
_CUT_S, _LOSE_S = 2.0, 1.0
"""How long after the connection to a rank is lost, if no other rank reports it gone, its host or this one is left out,
and how much later the rank counts as gone whatever the sentinels say.
"""


class Peers:
    """The peers with which a mailbox exchanges messages."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._noticed_at: dict[tuple[int, int], float] = {}
        """(run, rank) -> when this rank first found that the rank, on another host, has gone or failed."""

    def needed(self, request: MessageRequest, group: Group) -> list[int]:
        """The peers that can serve a request; any one of them is enough. Empty if only this rank itself can send it."""
        message = request.message if isinstance(request, Receive) else None
        if message is not None:
            return [message.source]
        ranks = range(group.size) if request.peer == ANY_SOURCE else [request.peer]
        return [rank for rank in ranks if rank != group.rank]

    def lost(self, request: MessageRequest, group: Group, awaited: bool) -> tuple[int, Departure | GivenUp] | None:
        """The rank because of which a request cannot be served, and how it has gone or failed; None: no rank.

        If several ranks could serve it, one that died or failed is enough; otherwise all of them must be gone.
        """
        ranks, went = self.needed(request, group), []
        for rank in ranks:
            how: Departure | GivenUp = group.liveness.gone(rank) or group.engine.arena.board(rank).gave_up
            if isinstance(how, GivenUp) and not how.number:
                how = self._cut(group, rank) or how
            # A rank that gave a call up refuses all later ones.
            if (isinstance(how, Departure) or how.number) and not self.may_come(group, request, rank, how):
                went.append((rank, how))
        hopeless = len(went) == len(ranks) and (awaited or request.peer != ANY_SOURCE)
        for rank, how in went:
            if hopeless or isinstance(how, GivenUp) or not how.in_order:
                return rank, how
        return None

    def _cut(self, group: Group, rank: int) -> Departure | None:
        """The departure of a rank that this rank no longer reaches, though no rank reports it gone."""
        cut = self._mailbox.cut(rank)
        if cut is None or group.span is None or (lasts_s := time.monotonic() - cut[1]) < _CUT_S:
            return None
        group.span.far.lose(group.world_ranks[rank])
        if lasts_s < _CUT_S + _LOSE_S:
            return None
        return Departure(DepartureKind.DIED, f"cannot be reached any more: {cut[0]}")

    def may_come(self, group: Group, request: MessageRequest, rank: int, how: Departure | GivenUp) -> bool:
        """May bytes still arrive that a rank on another host sent before it went: a message, or an acknowledgement?"""
        stream = self._mailbox.stream_from(rank)
        if group.span is None or rank in group.span.here:
            return False
        if isinstance(how, Departure) and how.how in (DepartureKind.DIED, DepartureKind.ABORTED):
            return False
        if isinstance(request, Receive) and (stream is None or stream.ended or stream.lost):
            return False
        now, world = time.monotonic(), group.world
        run = world.engine.arena.board(world.rank).run  # a rank that returned in an earlier run has sent messages since
        noticed_at = self._noticed_at.setdefault((run, rank), now)
        return now - max(noticed_at, stream.news_at if stream else 0.0) < _LAST_NEWS_S

    def error(self, group: Group, rank: int, how: Departure | GivenUp, call: str) -> PeerError:
        """Why a request cannot be served."""
        if isinstance(how, GivenUp):
            words = f"gave up group {group.name!r}: {how.reason}"
            return PeerFailed(rank, words, group.rank, call, group.named, whole=True)
        pid = group.engine.arena.board(rank).pid
        if group.span is not None and rank not in group.span.here:
            how = group.span.explain(how)
        return PeerGone(rank, pid, how, group.rank, call, group.named, others=True)


def far_peers(group: Group) -> FarPeers | None:
    """The members on other hosts; None: there is none."""
    world_span = group.world.span
    if group.span is None or world_span is None:
        return None
    far = frozenset(range(group.size)) - set(group.span.hosts.beside(group.rank))
    carrier = world_span.carrier
    traffic = world_span.resources.setdefault(CarrierStreams, CarrierStreams(carrier))
    return FarPeers(group.rank, far, group.world_ranks, group.span.gid, traffic)
