"""`checking`: the block in which a call is checked. A rank that refuses its own call tells the others why."""

import time
from typing import TYPE_CHECKING, Self

from ...base.errors import MismatchError, NestedCall, NotInitialized, PeerError, WaitTimeout
from ...base.python import LateModule
from ...base.records import CallRecord
from ...engine.process.nested import caller, check_nested, holds
from ...ranks.group.abort import aborted
from ...ranks.group.group import Group
from ..work import worker_of

if TYPE_CHECKING:
    from ...ranks.group import initialize
else:  # a call that names its group does not need it
    initialize = LateModule("...ranks.group.initialize", __package__)

_PATIENCE_S = 1.0
_NO_REFUSALS = (MismatchError, NestedCall, NotInitialized, PeerError, WaitTimeout)
"""Errors that are no refusal: the other ranks raise them, too, or there is no group to tell."""


class checking:  # noqa: N801  used as a statement: with checking(group, "reduce"): ...
    """The block in which a call is checked and planned.

    An error in the block counts as this rank's call: the other ranks raise MismatchError with the reason, and the group
    can be used again.
    """

    def __init__(self, group: Group | None, collective: str) -> None:
        self.group: Group = initialize.group_or_default(group)
        self.collective = collective

    def __enter__(self) -> Self:
        self.group.check_usable()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, _NO_REFUSALS):
            _refuse(self.group, self.collective, error)


def _refuse(group: Group, collective: str, error: Exception) -> None:
    """Tell the other ranks that this rank refuses its call, and why."""
    if group.size == 1 or group.closed or group.broken:
        return
    reason = " ".join(str(error).split()) or type(error).__name__
    record = CallRecord(collective, refused=reason, where=caller())
    if group.worker is not None and group.worker.busy:
        worker_of(group).submit(record, lambda: _announce(group, record))
    else:
        _announce(group, record)


@holds("group")
def _announce(group: Group, record: CallRecord) -> None:
    if group.lock.locked():
        check_nested(group)
    with group.lock:
        if _all_have_followed(group):
            group.host.arena.board(group.rank).set_call(group.host.call_number, record)
            group.host.refuse_call()
            if group.span is not None:
                group.span.tell()


def _all_have_followed(group: Group) -> bool:
    """Wait until all ranks have ended the last call; False if they take too long.

    A board keeps a rank's latest two calls only, so a rank that refuses must not get further ahead of a slow one.
    """
    until = time.monotonic() + _PATIENCE_S
    while not group.host.all_have_ended():
        if time.monotonic() > until or group.broken is not None or aborted(group):
            return False
        if group.span is not None:
            group.span.ask()
        time.sleep(0.0005)
    return True
