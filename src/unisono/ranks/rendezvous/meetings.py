"""The meeting that a rank takes part in, if one store sees several: the one that rank 0 holds now.

Rank 0 begins a meeting with a notice, which names the meeting. The others wait for the notice of a meeting that has not
ended. So a rank that comes late, or comes again after a time-out, meets the others in the next meeting. The notice also
names the job of this store, and the number of ranks that rank 0 waits for.
"""

import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import closing

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # not in torch's __all__

from ...base.errors import ArgumentError
from ...engine.memory.meeting_page import waits, waits_still
from .asked_store import AskedStore
from .entries import MeetingEnd, MeetingNotice, read, write
from .rendezvous_messages import end_of, missing, other_job, sizes_differ, why_ended

END = "end"
"""The key of a meeting that says how it has ended."""
BEAT = "beat"
"""The key of a meeting with a value that changes as long as rank 0 waits for other ranks."""
TOLD = "told"
"""The key of a meeting that counts the ranks that know why there is no group."""
NOTICE = "meeting"
"""The key of the notice of the last meeting."""
_MOST_JOB = 500

_LOOK_S, _NEXT_S = 0.05, 0.02
"""How often a rank looks whether rank 0 may still come, and whether it has begun the next meeting."""

_known: set[tuple[int, str]] = set()  # (rank, meeting): the meetings that this process has seen as this rank


def may_come(_rank: int) -> str:
    """Why a rank that has not come will not come; "": it may come, as far as is known."""
    return ""


def enter_meeting(
    store: Store,
    rank: int,
    size: int,
    job: str,
    deadline: float,
    why_absent: Callable[[int], str] = may_come,
    *,
    stale: bool = False,
) -> "tuple[str, Store]":
    """The name of the meeting that rank 0 holds, or begins, and its part of the store. why_absent: see `may_come`.

    stale: the store may have the notice of a rank 0 that has ended. So a notice counts once its rank 0 is seen to wait.

    Raises WaitTimeout if rank 0 begins none by the deadline, and PeerGone if the store has gone. Raises ArgumentError
    if another job meets here, if the ranks were given different sizes, or if rank 0 will not come.
    """
    began, job = time.monotonic(), job[:_MOST_JOB]
    with closing(AskedStore(store, rank, deadline)) as asked:
        name = _begin(asked, size, job) if rank == 0 else ""
        beats: dict[str, bytes] = {}  # meeting -> its first beat that was seen
        at = asked.where and f" at {asked.where}"
        details = f" The store{at} responds, but rank 0 has not called init(), or waits in torch's store for a missing "
        details += "rank, or another program uses this port."
        if rank:
            waits((0,), "to begin the meeting", asked.where)
        while not name:
            if (said := asked.value(NOTICE, min(_LOOK_S, deadline - time.monotonic()))) is not None:
                notice = read(MeetingNotice, said, 0)
                beat = asked.now(f"{notice.meeting}/{BEAT}") or b"" if stale else b""
                if stale and beats.setdefault(notice.meeting, beat) == beat:
                    details = f" The last rank 0 there was {notice.who}, of an earlier start of the job."
                elif notice.job != job:
                    raise other_job(asked.where, rank, job, notice)
                elif _is_over(asked, notice, rank, size, began):
                    details = f" Rank 0, {notice.who}, has not called init() again after the last attempt."
                else:
                    name = notice.meeting
                    break
                time.sleep(_NEXT_S)
            waits_still()
            if reason := why_absent(0):
                raise ArgumentError(reason)
            if time.monotonic() >= deadline:
                raise missing((0,), rank, time.monotonic() - began, details)
    _known.add((rank, name))
    return name, PrefixStore(name, store)


def _begin(store: AskedStore, size: int, job: str) -> str:
    """Begin a meeting; return its name.

    If the store did not answer in time, it may not know that rank 0's last meeting has ended: so rank 0 writes it now.
    The notice of that meeting may also reach the store only now: so the new notice replaces only the notice that this
    rank has read.
    """
    program = os.path.basename(sys.argv[0] if sys.argv else "")[:_MOST_JOB]
    notice = MeetingNotice(os.urandom(8).hex(), size, job, socket.gethostname(), os.getpid(), program)
    before, mine, there = _known.copy(), write(notice).encode(), b""
    _known.add((0, notice.meeting))
    while (said := store.replace(NOTICE, there.decode(), mine.decode())) != mine:
        there = said
        if (0, last := read(MeetingNotice, there, 0).meeting) in before:
            store.set_first(f"{last}/{END}", write(MeetingEnd(missing=(0,))))
    return notice.meeting


def _is_over(store: AskedStore, notice: MeetingNotice, rank: int, size: int, began: float) -> bool:
    """Has this meeting ended? Raises its error if it is new to this rank, and would recur in the next meeting."""
    end, wrong = f"{notice.meeting}/{END}", sizes_differ(rank, size, notice) if notice.size != size else None
    if wrong:
        store.set_first(end, write(end_of(wrong, rank)))
    if (said := store.now(end)) is None:
        return False
    if (rank, notice.meeting) not in _known:
        _known.add((rank, notice.meeting))
        ended = read(MeetingEnd, said, rank, notice.size)
        error = why_ended(ended, rank, time.monotonic() - began)
        if error and not ended.missing:
            store.add(f"{notice.meeting}/{TOLD}", 1)
            raise error
    if wrong:
        raise wrong
    return True
