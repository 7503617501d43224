"""`checking`: the block in which a call is checked. A rank that refuses its own call tells the others why."""

import threading
import time
from typing import Self

from ...base.errors import MismatchError, NestedCall, NotInitialized, PeerError, WaitTimeout
from ...base.records import CallRecord
from ...engine.process.nested import caller, check_nested, holds
from ...ranks.group import initialize
from ...ranks.group.abort import aborted, give_up
from ...ranks.group.group import Group
from ..work import worker_of
from .drive import check_finished, take

_PATIENCE_S = 1.0
"""How long a refused call waits for late peers before the worker waits for them."""
_NO_REFUSALS = (MismatchError, NestedCall, NotInitialized, PeerError, WaitTimeout)
"""Errors that do not refuse a call: other ranks raise them, too, or the group is missing."""


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
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, _NO_REFUSALS):
            return
        if self.last is not None and self.group.host.call_number > self.last:
            return
        try:
            if isinstance(error, Exception):
                _refuse(self.group, self.collective, error)
                return
        except NestedCall:
            raise
        except BaseException as other:  # Ctrl-C during the wait for late ranks, or a thread that cannot be started
            self._give_up(other)
            raise
        self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        give_up(self.group, f"interrupted by {type(error).__name__}", f"{self.collective} ({caller()})")


def _refuse(group: Group, collective: str, error: Exception) -> None:
    """Tell the other ranks that this rank refuses its call, and why.

    If they are late, the worker waits for them, as for a call in the background. This rank's next calls come after it.
    """
    if group.size == 1 or group.closed or group.broken:
        return
    reason = " ".join(str(error).split()) or type(error).__name__
    record = CallRecord(collective, refused=reason, where=caller())
    if not ((group.worker is None or not group.worker.busy) and _announce(group, record, _PATIENCE_S)):
        worker_of(group).submit(record, lambda: _announce_late(group, record))


def _announce_late(group: Group, record: CallRecord) -> None:
    if not _announce(group, record, group.timeout_s):
        give_up(
            group, f"refused {record.collective} and waited {group.timeout_s:.3g} s to tell late ranks", str(record)
        )


@holds("group")
def _announce(group: Group, record: CallRecord, patience_s: float) -> bool:
    """Enter the refused call once all ranks have ended the last one. False: they take too long."""
    held: list[threading.Lock] = []
    until = time.monotonic() + patience_s
    try:
        if group.lock.locked():
            check_nested(group)
        take(group.lock, patience_s, held)
        if not held or not _all_have_followed(group, until):
            return False
        check_finished(group, record, record.where)
        group.host.arena.board(group.rank).set_call(group.host.call_number, record)
        group.host.refuse_call()
        if group.span is not None:
            group.span.tell()
    finally:
        if held:
            group.lock.release()
    return True


def _all_have_followed(group: Group, until: float) -> bool:
    """Wait until all ranks that are there have ended the last call; False if they take too long.

    A board keeps a rank's latest two calls only, so a rank that refuses must not get further ahead of a slow one.
    """
    while not all(map(group.liveness.gone, group.host.still_in_last_call())):
        if time.monotonic() > until or group.broken is not None or aborted(group):
            return False
        if group.span is not None:
            group.span.ask()
        time.sleep(0.0005)
    return True
