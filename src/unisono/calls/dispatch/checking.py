"""`checking`: the block in which a call is checked. A rank that refuses its own call tells the others why."""

import threading
import time
from functools import partial
from itertools import count
from typing import Self

from ...base.errors import MismatchError, NestedCall, NotInitialized, PeerError, WaitTimeout
from ...base.records import RAISED_AT_NS, CallRecord
from ...engine.process.nested import caller, check_nested, holds
from ...ranks.group import initialize
from ...ranks.group.abort import give_up
from ...ranks.group.group import Group
from ..work import worker_of
from .drive import check_finished, take

_NO_REFUSALS = (MismatchError, NestedCall, NotInitialized, PeerError, WaitTimeout)
"""Errors that do not refuse a call: other ranks raise them, too, or the group is missing."""
_moments = count(1)


class checking:  # noqa: N801  used as a statement: with checking(group, "reduce"): ...
    """The block in which a call is checked and planned, before this rank enters it.

    An error in the block counts as this rank's call: the other ranks raise MismatchError with the reason, and the group
    can be used again. Ctrl-C in the block ends the group, because the user may count the call as made or as not made.

    last: the number of the last step, once it begins, if the block makes a call of several steps. Until then the other
    ranks wait for this one's next step.
    """

    last: int | None = None

    def __init__(self, group: Group | None, collective: str) -> None:
        self.group: Group = initialize.group_or_default(group)
        self.collective = collective

    def __enter__(self) -> Self:
        self.group.check_usable()
        self._began = next(_moments)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None or (self.last is not None and self.group.engine.call_number > self.last):
            return
        at, by = getattr(error, "refused_by", (0, 0))
        if at < self._began or by != id(self.group):  # else a block within this one has done so
            refuse(self.group, self.collective, error)


def refuse(group: Group, collective: str, error: BaseException) -> None:
    """Let this error count as this rank's next call. Waits for no other rank, but for other threads of this one.

    Calls in the background come first. An error that is no `Exception`, such as Ctrl-C, ends the group.
    """
    if isinstance(error, _NO_REFUSALS) or group.size == 1 or group.closed or group.broken is not None:
        return
    ended_by: BaseException | None = error
    try:
        if isinstance(error, Exception):
            vars(error)["refused_by"] = next(_moments), id(group)
            vars(error)[RAISED_AT_NS] = time.monotonic_ns()
            reason = " ".join(str(error).split()) or type(error).__name__
            enter = partial(_enter, group, CallRecord(collective, refused=reason, where=caller()))
            if group.worker is not None and group.worker.busy:
                worker_of(group).submit(collective, enter)
            else:
                enter()
            ended_by = None
    except BaseException as other:
        ended_by = None if isinstance(other, NestedCall) else other
        raise
    finally:
        if ended_by is not None:
            give_up(group, f"interrupted by {type(ended_by).__name__}", f"{collective} ({caller()})")


@holds("group")
def _enter(group: Group, record: CallRecord) -> None:
    """Enter a refused call, and leave it."""
    held: list[threading.Lock] = []
    try:
        if group.lock.locked():
            check_nested(group)
        take(group.lock, group.timeout_s, held)
        if not held:
            give_up(group, f"another thread was in a call for {group.timeout_s:.3g} s", str(record))
        elif group.broken is None:
            check_finished(group, record, record.where)
            group.engine.arena.board(group.rank).set_call(group.engine.call_number, record)
            group.engine.refuse_call()
            if group.span is not None:
                group.span.tell()
    finally:
        if held:
            group.lock.release()
