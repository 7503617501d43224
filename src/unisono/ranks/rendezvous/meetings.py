"""The meeting that a rank takes part in, if one store sees several: the one that rank 0 holds now.

Rank 0 begins a meeting with a notice, which names the meeting. The others wait for the notice of a meeting that has not
ended. So a rank that comes late, or comes again after a time-out, meets the others in the next meeting. The notice also
names the job of this store, and the number of ranks that rank 0 waits for.
"""

import time
from collections.abc import Callable
from contextlib import closing

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # not in torch's __all__

from ...base.errors import ArgumentError
from ...engine.memory.meeting_page import waits, waits_still
from .asked_store import AskedStore, at_store
from .rendezvous_messages import (
    MeetingMessage,
    MeetingNotice,
    message_of,
    missing,
    other_job,
    sizes_differ,
    why_ended,
)

END = "end"
"""The key of a meeting that says how it has ended."""
BEAT = "beat"
"""The key of a meeting with a value that changes as long as rank 0 waits for other ranks."""
TOLD = "told"
"""The key of a meeting that counts the ranks that know why there is no group."""
_NOTICE = "meeting"

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
    began = time.monotonic()
    with closing(AskedStore(store, deadline)) as asked, at_store(asked.where, rank, began):
        if rank == 0:
            notice = _begin(asked, MeetingNotice.mine(size, job))
        else:
            notice = _the_notice(asked, rank, size, job, began, deadline, why_absent, stale)
            _known.add((rank, notice.name))
    return notice.name, PrefixStore(notice.name, store)


def _begin(store: AskedStore, notice: MeetingNotice) -> MeetingNotice:
    """Begin a meeting.

    If the store did not answer in time, it may not know that rank 0's last meeting has ended: so rank 0 writes it now.
    The notice of that meeting may also reach the store only now: so the new notice replaces only the notice that this
    rank has read.
    """
    before = _known.copy()
    _known.add((0, notice.name))
    mine, there = notice.text().encode(), b""
    while (said := store.replace(_NOTICE, there.decode(), mine.decode())) != mine:
        there = said
        if (0, last := MeetingNotice.read(there).name) in before:
            store.set_first(f"{last}/{END}", MeetingMessage(missing=(0,)).text())
    return notice


def read_notice(store: AskedStore) -> MeetingNotice | None:
    """The notice of the last meeting at this store, or None."""
    return None if (said := store.now(_NOTICE)) is None else MeetingNotice.read(said)


def _the_notice(
    store: AskedStore,
    rank: int,
    size: int,
    job: str,
    began: float,
    deadline: float,
    why_absent: Callable[[int], str],
    stale: bool,
) -> MeetingNotice:
    at = store.where and f" at {store.where}"
    details = f" The store{at} answers, but rank 0 has not begun a meeting there. It has not called init(), "
    details += "or waits itself, in torch's store, for a rank that has not come, or another program uses this port."
    waits((0,), "to begin the meeting", store.where)
    beats: dict[str, bytes] = {}
    while True:
        if (said := store.value(_NOTICE, min(_LOOK_S, deadline - time.monotonic()))) is not None:
            notice = MeetingNotice.read(said)
            if stale and not _is_held(store, notice.name, beats):
                details = f" The last meeting there was of {notice.who}: rank 0 of an earlier start of the job."
            else:
                end = f"{notice.name}/{END}"
                if notice.job != job:
                    raise other_job(store.where, rank, job, notice)
                if notice.size != size:
                    store.set_first(end, message_of(sizes_differ(rank, size, notice), rank).text())
                if not store.check([end]):
                    return notice
                _refuse_once(store, notice, rank, size, began)
                details = f" Rank 0, {notice.who}, has ended a meeting, and has not begun the next one with init()."
            time.sleep(_NEXT_S)
        waits_still()
        if reason := why_absent(0):
            raise ArgumentError(reason)
        if time.monotonic() >= deadline:
            raise missing((0,), rank, time.monotonic() - began, details)


def _is_held(store: AskedStore, name: str, beats: dict[str, bytes]) -> bool:
    """Has rank 0 been seen to wait in this meeting? beats: meeting -> its first beat that was seen."""
    beat = store.now(f"{name}/{BEAT}") or b""
    return beats.setdefault(name, beat) != beat


def _refuse_once(store: AskedStore, notice: MeetingNotice, rank: int, size: int, began: float) -> None:
    """Raise the error of a meeting that has ended, if it is new to this rank, and would recur in the next meeting."""
    if (rank, notice.name) not in _known:
        _known.add((rank, notice.name))
        message = MeetingMessage.read(store.now(f"{notice.name}/{END}") or b"", notice.size, rank)
        error = why_ended(message, rank, time.monotonic() - began)
        if error and not message.missing:
            store.add(f"{notice.name}/{TOLD}", 1)
            raise error
    if notice.size != size:
        raise sizes_differ(rank, size, notice)
