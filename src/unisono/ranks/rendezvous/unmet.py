"""Why ranks do not meet: for each reason the error, made of its fields, and its text at the store."""

from __future__ import annotations

from ...base.errors import ArgumentError, OutOfMemory, PeerFailed, PeerGone, WaitTimeout
from ...base.records import Departure, DepartureKind
from .rendezvous_messages import MeetingNotice, MeetingVerdict

_MOST_WORDS = 4_000
_MOVE = "Set MASTER_ADDR, to an address of rank 0's host that all hosts reach, and MASTER_PORT, for every process"


def verdict_of(error: BaseException, rank: int) -> MeetingVerdict:
    """What a rank tells the others when it ends the meeting by this error."""
    match error:
        case WaitTimeout():
            return MeetingVerdict(missing=error.missing or (rank,))  # empty: rank 0's own store has not answered
        case PeerGone():
            return MeetingVerdict(dead=(error.rank,))
        case OutOfMemory():
            return MeetingVerdict(full=f"rank {rank}: {error}"[:_MOST_WORDS])
        case ArgumentError():
            return MeetingVerdict(reason=str(error)[:_MOST_WORDS])
    words = f"rank {rank} gave up init(): {type(error).__qualname__}: {error}"
    return MeetingVerdict(reason=words[:_MOST_WORDS])


def why_ended(verdict: MeetingVerdict, rank: int, waited_s: float, pid_of: dict[int, int]) -> Exception | None:
    """The error that this rank raises if others have ended the meeting with this verdict; None: there is a group."""
    if verdict.reason:
        return ArgumentError(verdict.reason)
    if verdict.full:
        return OutOfMemory(verdict.full)
    if verdict.missing:
        return missing(verdict.missing, rank, waited_s)
    if verdict.dead:
        return died(verdict.dead[0], pid_of.get(verdict.dead[0], 0), rank)
    return None


def missing(ranks: tuple[int, ...], rank: int, waited_s: float, details: str = "") -> WaitTimeout:
    """These ranks have not come, or not done their part, in time."""
    if rank in ranks:
        details = " The others waited for this rank no longer: let all ranks call init() again." + details
    return WaitTimeout("init()", waited_s, ranks, rank, details)


def died(rank: int, pid: int, waiting: int) -> PeerGone:
    """The process of a rank has ended."""
    return PeerGone(rank, pid, Departure(DepartureKind.DIED, "died"), waiting, "init()", met=False)


def store_closed(where: str, rank: int, cause: BaseException) -> PeerGone | PeerFailed:
    """The store has closed the connection. It is run by rank 0's process, or by the launcher there."""
    brief = str(cause).partition("\n")[0].rstrip(".")
    words = f"the store where the ranks meet{where and f', at {where},'} has closed the connection ({brief})"
    if rank == 0:
        reason = f"{words}: the process that runs it, mostly the launcher, has ended. Start all ranks again."
        return PeerFailed(0, reason, 0, "init()")
    how = Departure(DepartureKind.DIED, f"cannot be reached, as {words},")
    return PeerGone(0, 0, how, rank, "init()", met=False)


def store_silent(where: str, rank: int, waited_s: float, silent_s: float) -> WaitTimeout:
    """The store is connected and does not answer."""
    words = f" The store where the ranks meet{where and f', at {where},'} has not answered for {silent_s:.3g} s: "
    words += "the process that runs it, rank 0's or the launcher's, is stopped, or its host is cut off."
    return WaitTimeout("init()", waited_s, (0,) if rank else (), rank, words)


def sizes_differ(rank: int, size: int, notice: MeetingNotice) -> ArgumentError:
    """This rank and rank 0 were given different sizes."""
    return ArgumentError(
        f"the ranks have been told different sizes: rank 0 {notice.size}, rank {rank} {size}. Give all ranks "
        "of the job the same WORLD_SIZE, or the same size in init()"
    )


def other_job(where: str, rank: int, job: str, notice: MeetingNotice) -> ArgumentError:
    """The ranks of another job meet at this store."""
    return ArgumentError(
        f"at {where or 'the store'}, where this process, rank {rank} of {_named(job)}, should meet its job, the ranks "
        f"of {_named(notice.job)} meet: their rank 0 is {notice.who}. Give each job a port of its own: set MASTER_PORT"
    )


def _named(job: str) -> str:
    return f"job {job!r}" if job else "a job without a name"


def twice(where: str, rank: int, who: str) -> ArgumentError:
    """Two processes have come as one rank."""
    return ArgumentError(
        f"another process has come as rank {rank} already{where and f' at {where}'}: {who}. Give each process of a job "
        "a RANK of its own, and each job a port of its own: set MASTER_PORT"
    )


def unreachable(rank: int, address: str, port: int, tried_s: float, cause: str) -> ArgumentError:
    """The host where rank 0 should be has no address, or there is no way to it."""
    return ArgumentError(
        f"rank {rank} has tried for {tried_s:.3g} s to reach {address}, port {port}, where rank 0 should be: {cause}. "
        f"{_MOVE}"
    )
