"""`Call`: one call of this rank, from its arguments to its result."""

from functools import partial
from typing import Any

from ...base.errors import WaitTimeout
from ...base.records import CallRecord
from ...engine.process.nested import caller
from ...ranks.group.abort import give_up
from ...ranks.group.group import Group
from ..work import Work, worker_of
from .blocks import exchange_record, plan_blocks
from .checking import checking
from .known import CallKey
from .rank_order import plan_step, premultiplied
from .request import Request
from .step import Action, CallOptions


class Call(checking):
    """`with Call(what, ...) as call:` is the block in which a call is checked and planned; `call.run()` makes it.

    what: as in `shortcut`, or the collective's name for a call that consists of several steps.
    """

    def __init__(
        self, what: CallKey | str, group: Group | None = None, async_op: bool = False, timeout_s: float | None = None
    ) -> None:
        self.what: CallKey = (what, None, 0, None) if isinstance(what, str) else what
        super().__init__(group, self.what[0])
        self.how = CallOptions(self.group, async_op, self.what[3], timeout_s)
        self.returns = False
        self.request: Request | None = None
        self.action: Action = lambda _: None

    @property
    def record(self) -> CallRecord:
        """The call as ranks compare it."""
        return CallRecord(self.collective) if self.request is None else self.request.record

    def plan(self, request: Request) -> None:
        """Plan the call. Raises ArgumentError or DTypeError for a request that cannot be made."""
        self.request = request
        known_as: CallKey | None = self.what
        if (scaled := premultiplied(request, self.group.rank)) is not request:
            request, known_as = scaled, None
        self.action = plan_step(self.how, request, known_as)

    def plan_blocks(self, request: Request) -> None:
        """Plan a call on lists of blocks whose sizes the ranks exchange first."""
        self.request = request._replace(says=exchange_record(request))
        self.action = plan_blocks(self.how, request)

    def run(self) -> Any:
        """Make the call, and return its result if `returns` is set. With `async_op`: return a Work at once."""
        group, action = self.group, self.action
        if self.how.async_op or (group.worker is not None and group.worker.busy):
            where = caller()
            with checking(group, self.collective):
                worker = worker_of(group)
            work = worker.submit(self.record, partial(action, where))
            if self.how.async_op:
                return work
            result = self._result(work, where)
        else:
            result = action(None)
        return result if self.returns else None

    def _result(self, work: Work[Any], where: str) -> Any:
        """The result of a call behind calls in the background. A time limit holds for all of them."""
        try:
            return work.result(self.how.timeout_s)
        except WaitTimeout as late:
            if work.is_completed():
                raise
            group, call, details = self.group, f"{self.record} ({where})", " Earlier calls of this group come first."
            give_up(group, f"interrupted by {type(late).__name__}", call)
            raise WaitTimeout(call, self.how.timeout_s or 0.0, late.missing, group.rank, details, group.named) from None
