"""Why ranks do not meet: an error for each reason, and how it is passed to the other ranks (`MeetingEnd`)."""

import os

from ...base.errors import ArgumentError, OutOfMemory, PeerFailed, PeerGone, WaitTimeout
from ...base.records import Departure, DepartureKind
from .entries import MOST_WORDS, MeetingEnd


def end_of(error: BaseException, rank: int) -> MeetingEnd:
    """What a rank writes for the others when it ends the meeting by this error."""
    match error:
        case WaitTimeout():
            return MeetingEnd(missing=error.missing or (rank,))  # empty: rank 0's own store has not answered
        case PeerGone():
            return MeetingEnd(gone=(error.rank, error.pid, error.how.how), words=error.how.words[:MOST_WORDS])
        case OutOfMemory():
            return MeetingEnd(full=f"rank {rank}: {error}"[:MOST_WORDS])
        case ArgumentError():
            return MeetingEnd(reason=str(error)[:MOST_WORDS])
    return gave_up(error, rank)


def gave_up(error: BaseException, rank: int) -> MeetingEnd:
    """What a rank writes that is the reason itself, by this error."""
    said = ": ".join(filter(None, [type(error).__qualname__, " ".join(str(error).split())]))
    how = DepartureKind.RAISED
    return MeetingEnd(gone=(rank, os.getpid(), how), words=f"gave up init(): {said}"[:MOST_WORDS])


def why_ended(end: MeetingEnd, rank: int, waited_s: float) -> Exception | None:
    """The error that this rank raises if others have ended the meeting in this way; None: there is a group."""
    if end.reason:
        return ArgumentError(end.reason)
    if end.full:
        return OutOfMemory(end.full)
    if end.missing:
        return missing(end.missing, rank, waited_s)
    if not end.gone:
        return None
    peer, pid, how = end.gone
    return PeerGone(peer, pid, Departure(DepartureKind(how), end.words), rank, "init()", met=False)


def missing(ranks: tuple[int, ...], rank: int, waited_s: float, details: str = "") -> WaitTimeout:
    """These ranks have not come, or not done their part, in time."""
    if rank in ranks:
        details = " The others have stopped waiting for this rank. Call init() again on all ranks." + details
    return WaitTimeout("init()", waited_s, ranks, rank, details)


def died(rank: int, pid: int, waiting: int) -> PeerGone:
    """The process of a rank has ended."""
    return PeerGone(rank, pid, Departure(DepartureKind.DIED, "died"), waiting, "init()", met=False)


def store_closed(where: str, rank: int, cause: BaseException) -> PeerGone | PeerFailed:
    """The store has closed the connection. It is run by rank 0's process, or by the launcher there."""
    brief = str(cause).partition("\n")[0].rstrip(".")
    words = f"the store where the ranks meet{where and f', at {where},'} has closed the connection ({brief})"
    if rank == 0:
        reason = f"{words}: the process that runs it, usually the launcher, has ended. Start all ranks again."
        return PeerFailed(0, reason, 0, "init()")
    how = Departure(DepartureKind.DIED, f"cannot be reached, as {words},")
    return PeerGone(0, 0, how, rank, "init()", met=False)


def store_silent(where: str, rank: int, waited_s: float, silent_s: float) -> WaitTimeout:
    """The store is connected and does not answer."""
    words = f" The store where the ranks meet{where and f', at {where},'} has not answered for {silent_s:.3g} s: "
    words += "the process that runs it, rank 0 or the launcher, is stopped, or its host is cut off. Or no DNS server "
    words += "answers: torch's store waits for the name of each process that connects."
    return WaitTimeout("init()", waited_s, (0,) if rank else (), rank, words)
