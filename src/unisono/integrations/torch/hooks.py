"""torch's hooks: functions to call before and after each call of a group, from torch 2.14 on.

torch's dispatcher calls them, and our groups pass it by. So a group with hooks makes a detour: its method calls torch's
method of this name, which calls the hooks before, the group's backend, and the hooks after. The backend lets the group
make the call, as if there were no hooks.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch._C._distributed_c10d as c10d

from ...base.errors import PeerFailed, PeerGone, WaitTimeout
from ...base.release import NAME

HERE: Any = object()
"""Make the call without a detour."""


class Hooks(threading.local):
    """The detours of a group's calls, in each thread.

    work: of the call that was made last, for hooks after it.
    """

    work: Any = None
    _make: Callable[[], Any] | None = None
    _told = False

    def detour(self, ours: Any, torchs: Any, one: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Return the work of a call, or HERE.

        ours: our method, which comes here again.
        torchs: torch's method.
        one: the group, or its backend, that makes the call.
        """
        if isinstance(one, c10d.Backend):
            return HERE if self._make is None else self._make()
        if self._told:
            self._told = False
            return HERE
        before, made = (self._make, self.work), []

        def make() -> Any:
            self._make, self._told = None, True
            self.work = ours(one, *args, **keywords)
            made.append(self.work)
            return self.work

        self._make = make
        try:
            made.append(torchs(one, *args, **keywords))  # another backend's, or a holder of ours, which lacks methods
        finally:
            self._make, self.work = before
        return made[0]


def with_our_work(hooks: Hooks, hook: Callable[[Any], None]) -> Callable[[Any], None]:
    """A hook that gets the work that the caller gets, too."""

    def told(args: Any) -> None:
        args.work = args.work if hooks.work is None else hooks.work
        hook(args)

    return told


def call_abort_hooks(hooks: Mapping[int, Callable[[], None]], error: BaseException | None = None) -> None:
    """Call the hooks, in the order of their ids, if this error ends the use of a group. None: an abort does."""
    if error is None or isinstance(error, PeerGone | WaitTimeout) or (isinstance(error, PeerFailed) and error.whole):
        for hook_id, hook in sorted(hooks.items()):
            try:
                hook()
            except Exception:  # it must not hide the error
                logging.getLogger(NAME).exception("abort hook %s of the program has failed", hook_id)
