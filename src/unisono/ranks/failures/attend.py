"""Handle a kernel or relay that returns unfinished: look at all peers, then run it again or raise.

It returns after `look_up_s` seconds of waiting (20 ms by default), later on after up to 200 ms. Python then handles
signals such as Ctrl-C, looks at every peer, and `judge` decides. Ranks of other hosts are judged only by fresh copies
of their boards.
"""

import errno
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from ...base.errors import (
    InternalError,
    MismatchError,
    NestedCall,
    PeerError,
    PeerFailed,
    PeerGone,
    PeerUnreachable,
    UnisonoError,
    WaitTimeout,
)
from ...base.records import CallRecord, GivenUp
from ...engine.carrier import Lost
from ...engine.compile.plan import Plan
from ...engine.compile.program import DONE, FAILED, LOST, STAGED
from ...engine.memory.arena import Arena
from ...observe.traces.last_calls import last_calls
from ..group.abort import check_abort
from ..group.group import Group
from ..group.survivors import check_left_out
from .stall import Stall
from .verdict import Disagree, Failed, Gone, Late, PeerView, Situation, Verdict, judge

_LOOKS, _LOOKS_S = 20, 0.4
"""A rank that has not looked for _LOOKS times `look_up_s`, and for _LOOKS_S, was itself stopped: see `attend`."""
_ENDING_S = 10.0  # how long a process that is ending may take to return its memory, before it counts as gone
_PAUSE_S = 0.002
_COLLECT_S = 1.0
"""How long a rank waits for the other ranks' calls before it raises a MismatchError without them: a rank writes its
call when it first runs Python in it, and another thread may delay it.
"""

_SEE_S = 0.5
"""How long a rank waits to see for itself why a peer gave up. News from another host takes some milliseconds."""
_CALM_SHARE, _CALM_S = 20, 1.0
"""How long a rank trusts a look at other hosts: a twentieth of its wait so far, at most _CALM_S."""
_STALE_S = 2.0
"""If a host does not answer within this time, a rank looks without the answer: the rank's own time may be up."""
_ARRIVES_S = 10.0  # how long messages may take, from a rank that has left after this call
_CAUSE_S = 2.5
"""How long a rank looks for the cause after its part has failed, beyond the time for which hosts may be silent: the
cause may be on another host, and the loss of a host is told some time after its messages have ended.
"""


def attend(
    group: Group,
    plan: Plan,
    inp: int,
    out: int,
    status: int,
    timeout_s: float | None,
    where: str,
    staged: Callable[[], Plan],
) -> None:
    """Finish a run of a plan on these addresses that stopped with this status.

    staged: makes the plan that stages the call, for the case that other ranks stage it, or that system calls do not
    reach this rank's tensors. Nothing has moved then.

    Raises MismatchError, PeerGone, PeerFailed, PeerUnreachable or WaitTimeout. All but MismatchError break the group,
    because the ranks may be at different points of the call.
    """
    looked_at, waited_s = time.monotonic(), 0.0
    allowed = group.timeout_s if timeout_s is None else timeout_s
    longest = max(_LOOKS * group.engine.config.look_up_s, _LOOKS_S)
    watch = Watch(group, plan, where)
    try:
        while status != DONE:
            rank, number = status >> 8 & 0xFFFF, status >> 32
            if status & 0xFF == FAILED:
                if rank != group.rank:
                    watch.unreachable(rank, number)
                group.engine.cross_no_more()
            if status & 0xFF == LOST:
                watch.lost(rank, allowed)
            if status & 0xFF in (FAILED, STAGED):
                watch.plan = plan = staged()
                group.engine.begin_again()
                status = group.run(plan.address, inp, out, group.state)
                continue
            now = time.monotonic()
            waited_s, looked_at = waited_s + min(now - looked_at, longest), now
            if watch.is_time(rank):
                watch.look(rank, waited_s, allowed)
            status = group.run(plan.address, inp, out, group.state)
    except MismatchError:
        watch.leave()
        raise
    except BaseException as error:
        watch.give_up(error)
        raise
    finally:
        watch.stall.end()


def interrupted(group: Group, plan: Plan, error: BaseException, where: str) -> None:
    """Give up a call that an exception such as Ctrl-C ended right after the kernel returned, before `attend`."""
    span = group.span
    if (group.broken is None and group.engine.unfinished) if span is None else span.call is not None:
        Watch(group, plan, where).give_up(error)


class Watch:
    """One rank that watches its peers during one call."""

    def __init__(self, group: Group, plan: Plan, where: str) -> None:
        self.group, self.engine, self.plan, self.span = group, group.engine, plan, group.span
        self.under_way = None if group.span is None else group.span.call
        self.number = group.engine.call_number
        of, self.world_ranks = (f" of group {group.name!r}", group.world_ranks) if group.parent else ("", ())
        self.record = plan.record._replace(where=where)
        self.call = f"{self.record} #{self.number}{of} ({where})"
        self.board = self.engine.arena.board(group.rank)
        self.stall = Stall(group, self.call, background=group.worker is not None and group.worker.is_this_thread)
        self.told = False
        self.seen: tuple[type[Verdict | None], int] = type(None), -1
        self.seen_since = 0.0
        """What the last looks have found, all the same since then: the kind of verdict, and for Gone its rank."""
        self.ticket, self.asked_at, self.is_fresh = 0, 0.0, False
        self.calm_until = 0.0
        """Until then, a rank that waits for another host trusts its last look, which has found nothing. Urgent news
        end the wait meanwhile: see `Arena.news`.
        """
        self.left_at: dict[int, float] = {}

    def is_time(self, waiting_for: int) -> bool:
        """Is it time to look? Over hosts, once fresh copies are there, which a rank asks for when it has been calm for
        a while; at once if a call names this rank, because a peer has gone.
        """
        self.is_fresh = False
        if self.span is None or waiting_for == self.group.rank:
            return True
        now = time.monotonic()
        if not self.ticket:
            if now < self.calm_until:
                return False
            self.ticket, self.asked_at = self.span.ask(), now
        self.is_fresh = self.span.far.answered(self.ticket)
        if not self.is_fresh and now < self.asked_at + _STALE_S:
            return False
        self.ticket = 0
        return True

    def look(self, waiting_for: int, waited_s: float, allowed_s: float) -> None:
        """Look at all peers once; raise if the call cannot succeed."""
        self.calm_until = 0.0
        if not self.engine.behind():  # who is, may still ask for the call that stands there
            self.tell()
        me = Situation(
            self.number,
            self.plan.signature,
            waiting_for,
            self.engine.at_gate(self.plan.program.gate_row),
            waited_s > allowed_s,
        )
        peers = [self.view(rank) for rank in range(self.group.size) if rank != self.group.rank]
        check_abort(self.group, lambda: self.call)  # after the views: a peer that hears of it earlier gives up, too
        self.group.check_usable()  # another thread of this rank may have given up
        verdict = judge(me, peers)
        if not isinstance(verdict, Disagree):
            check_left_out(self.group)
        if self.is_early(verdict, me, peers):
            time.sleep(_PAUSE_S)
            return
        if isinstance(verdict, Gone):
            raise self.gone(verdict)
        if isinstance(verdict, Failed):
            raise PeerFailed(verdict.rank, verdict.reason, self.group.rank, self.call, self.world_ranks)
        if isinstance(verdict, Disagree):
            raise self.mismatch()
        if isinstance(verdict, Late):
            missing = tuple(rank for rank in verdict.missing if rank != self.group.rank)
            raise self.stall.late(missing, waited_s)
        absent = tuple(peer.rank for peer in peers if peer.number < self.number)
        self.stall.look(absent or (waiting_for,), waited_s)
        self.calm_until = time.monotonic() + min(waited_s / _CALM_SHARE, _CALM_S, max(allowed_s - waited_s, 0.0))

    def tell(self) -> None:
        """Write this rank's call for the others."""
        if not self.told:
            self.board.set_call(self.number, self.record)
            self.told = True

    def is_early(self, verdict: Verdict | None, me: Situation, peers: Sequence[PeerView]) -> bool:
        """May a later look find more, or another verdict?"""
        now = time.monotonic()
        seen = type(verdict), verdict.rank if isinstance(verdict, Gone) else -1
        is_first = seen != self.seen
        if is_first:
            self.seen, self.seen_since = seen, now
        lasted_s = now - self.seen_since
        match verdict:
            case Gone():  # the peer may have finished its part before it went: let the kernel look once more
                return is_first and not verdict.sure
            case Failed():  # the peer gave up because a rank has gone, at which it looked later than this rank
                return verdict.unseen and not me.overdue and lasted_s < _SEE_S
            case Disagree():  # words of a rank on another host may come one by one
                known = self.known_calls()
                all_told = all(peer.rank in known or peer.gone for peer in peers)
                more = not all_told and not me.overdue and lasted_s < _COLLECT_S
                return more or (is_first and self.span is not None)
        return False

    def look_for_cause(self, suspect: int, within_s: float, allowed_s: float) -> None:
        """Raise why the call cannot go on, if looks find that within this time."""
        until = time.monotonic() + within_s
        while True:
            if self.span is not None:
                self.is_fresh = self.span.refresh(until)
            for _ in range(2):  # a rank that has gone is seen twice
                self.look(suspect, 0.0, allowed_s)
            if time.monotonic() > until:
                return
            time.sleep(_PAUSE_S)

    def unreachable(self, rank: int, number: int) -> NoReturn:
        """Raise the reason why the system has refused access to a peer's tensors, with this errno."""
        self.look_for_cause(rank, _ENDING_S if number == errno.ESRCH else 0.0, math.inf)
        pid = self.engine.arena.board(rank).pid
        raise PeerUnreachable(rank, pid, number, self.group.rank, self.call, self.world_ranks)

    def lost(self, suspect: int, allowed_s: float) -> NoReturn:
        """Raise why a call over hosts has failed.

        suspect: the rank of the lost connection, often lost because of another failure; or this rank, if its own part
        has failed.
        """
        if self.span is None or self.under_way is None or self.under_way.failure is None:
            raise InternalError("the call over hosts that failed is not known")
        error = self.under_way.failure
        if not isinstance(error, Lost):
            raise error
        try:
            self.look_for_cause(suspect, self.span.far.silent_s + _CAUSE_S, allowed_s)
            if suspect not in self.span.here:
                self.span.far.lose(self.group.world_ranks[suspect])
                self.look_for_cause(suspect, _CAUSE_S, allowed_s)
        except (PeerError, WaitTimeout) as cause:
            raise cause from error
        reason = f"cannot go on: {error.reason}"
        raise PeerFailed(suspect, reason, self.group.rank, self.call, self.world_ranks) from error

    def gone(self, verdict: Gone) -> PeerGone:
        """The error that names this peer, and all that have gone as far as this rank sees, not because of another."""
        rank, board, gone = verdict.rank, self.engine.arena.board, self.group.liveness.gone
        peers = [peer for peer in range(self.group.size) if peer != self.group.rank]
        failed = [peer for peer in peers if peer == rank or (gone(peer) and not board(peer).gave_up.number)]
        how = verdict.how
        if self.group.parent and how.in_order:  # a rank whose program fails leaves its sub-groups, too
            above = self.group.world.liveness.left(self.group.world_ranks[rank])
            how = how if above is None or above.in_order else above
        how = how if self.span is None else self.span.explain(how)
        return PeerGone(rank, board(rank).pid, how, self.group.rank, self.call, self.world_ranks, failed=failed)

    def view(self, rank: int) -> PeerView:
        """A peer as seen now."""
        # In this order: a rank that has gone writes no more, so nothing that it wrote before can be missed. And a peer
        # that enters the call between two reads does not seem to have entered another one.
        gone, span, ended = self.group.liveness.gone(rank), self.span, self.engine.has_ended(rank)
        entered = max(self.engine.entered(rank), self.number if ended else 0)
        signature, gave_up = self.engine.signature(rank, self.number), self.engine.arena.board(rank).gave_up
        owes = span is not None and gone is not None and not (gone.in_order or ended)
        if span is not None and gone is not None and not owes:
            # It made its calls before it left, and so did others: this host may not know these calls yet. And messages
            # of this call may be under way from another host.
            arrives = gone.in_order and ended and rank not in span.here and self.arrives(rank)
            gone = None if arrives or not self.is_fresh else gone
        return PeerView(rank, entered, signature, gone, gave_up, owes)

    def arrives(self, rank: int) -> bool:
        """May messages of this call still come from a rank of another host that has ended it, and left?"""
        return time.monotonic() < self.left_at.setdefault(rank, time.monotonic()) + _ARRIVES_S

    def known_calls(self) -> dict[int, CallRecord]:
        """Rank -> its call of this number, if it has written it. Of a rank that has refused it, and others since: one
        of these.
        """
        told = {}
        for rank in range(self.group.size):
            refused = not self.engine.signature(rank, self.number)
            told[rank] = self.engine.arena.board(rank).call(self.number, or_later=refused)
        return {rank: call for rank, call in told.items() if call}

    def mismatch(self) -> MismatchError:
        """The error with every rank's call, as far as they are known."""
        self.tell()
        calls = self.known_calls()
        if len({call._replace(lowering="").text for call in calls.values()}) == 1:  # but tables or settings differ
            for rank, call in calls.items():
                mine = rank == self.group.rank
                signature = self.plan.signature if mine else self.engine.signature(rank, self.number)
                calls[rank] = call._replace(hash=f"{signature & (1 << 64) - 1:016x}")
        calls = {rank: calls.get(rank, CallRecord("")) for rank in range(self.group.size)}
        return MismatchError(self.number, calls, odd_ones(calls), self.world_ranks)

    def leave(self) -> None:
        """Leave a call that ranks have refused."""
        if self.under_way is not None:
            self.under_way.drop()
            self.engine.withdraw()
        self.engine.skip_call()

    def give_up(self, error: BaseException) -> None:
        """Tell the other ranks that this one gives the call up, and break the group."""
        if self.under_way is not None:
            self.under_way.drop()
        late = isinstance(error, WaitTimeout)
        if isinstance(error, PeerError | WaitTimeout):
            self.add_last_calls(error)
        blames = error.missing if isinstance(error, WaitTimeout) else ()
        if isinstance(error, PeerGone) or (isinstance(error, PeerFailed) and not error.whole):
            blames = (error.rank,) if error.rank != self.group.rank else ()
        said = str(error).partition("\n")[0] if late else str(error)  # a late rank needs no stack of its own
        reason = f"{type(error).__name__}: {said}" if said else type(error).__name__
        if isinstance(error, PeerFailed) and error.rank == self.group.rank:  # the group was aborted from outside
            reason = error.reason
        self.board.set_gave_up(GivenUp(self.number, late, frozenset(blames), reason))
        self.engine.sign_off(inline=self.plan.inline)
        if not isinstance(error, UnisonoError) or isinstance(error, NestedCall):  # from a signal handler
            how = f"interrupted by {type(error).__name__}"
            error = PeerFailed(self.group.rank, how, self.group.rank, self.call, self.world_ranks)
        self.group.give_up(error)
        if self.span is not None:
            self.span.tell()

    def add_last_calls(self, error: UnisonoError) -> None:
        """Note in the error the last calls of all ranks; they are printed below the message."""
        arena = self.group.world.engine.arena
        if isinstance(arena, Arena) and arena.map is not None:
            error.add_note(last_calls(arena, self.group.engine.arena.start))


def odd_ones(calls: Mapping[int, CallRecord]) -> list[int]:
    """The ranks with another call than the most common one. Of equally common calls, the lowest rank's counts."""
    said = {rank: calls[rank]._replace(where="", lowering="") for rank in sorted(calls)}
    common = Counter(said.values())
    usual = max(common, key=lambda call: common[call])
    return [rank for rank in said if said[rank] != usual]
