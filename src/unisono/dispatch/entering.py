"""A rank whose own arguments are wrong says so to the others: they raise in the same call, and do not wait for it."""

from __future__ import annotations

import time
from types import TracebackType

from ..errors import DTypeError, MismatchError, NotInitialized, PeerError, WaitTimeout
from ..membership import NonMember
from ..membership.group import Group
from ..watch import caller

__all__ = ["entering", "refuse"]

_PATIENCE_S = 1.0
_NO_REFUSALS = (MismatchError, NotInitialized, PeerError, WaitTimeout)
"""What a rank raises together with the others, or because there is no group."""


class entering:  # noqa: N801  used as a statement: with entering(group, "reduce"): ...
    """Where a call is checked and planned. What this rank refuses counts as its call: to the others it is another one,
    so they raise MismatchError with the reason, and the group stays usable."""

    def __init__(self, group: Group, collective: str) -> None:
        self._group, self._collective = group, collective

    def __enter__(self) -> None:
        if not isinstance(self._group, Group | NonMember):
            raise DTypeError(f"group: expected a Group or None, got {type(self._group).__name__}")
        self._group.check_usable()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, _NO_REFUSALS):
            refuse(self._group, self._collective, error)


def refuse(group: Group, collective: str, error: BaseException) -> None:
    """Tell the others that this rank does not make the call that they make, and why."""
    if group.size == 1 or group.closed or group.broken:
        return
    reason = " ".join(str(error).split()) or type(error).__name__
    call = f"{collective}, refused there: {reason}"
    where = caller()

    def announce() -> None:
        with group.lock:
            if not _all_have_followed(group):
                return
            group.host.arena.board(group.rank).set_call(group.host.call_number, call, where)
            group.host.refuse_call()

    if group.worker is not None and group.worker.busy:
        group.worker.submit(call, announce)
    else:
        announce()


def _all_have_followed(group: Group) -> bool:
    """Have all ranks ended the call before? Only the words for a rank's latest two calls are kept, so one that goes on
    without waiting for the others must not leave a slow one behind by more."""
    until = time.monotonic() + _PATIENCE_S
    while not group.host.all_have_ended():
        if time.monotonic() > until:
            return False
        time.sleep(0.0005)
    return True
