"""`Call`: one call of this rank, from checked arguments to its result. `plan`: one run of a table, to be made later.

Tensors that a call cannot work on are copied to plain ones.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from ...base.errors import WaitTimeout
from ...base.records import CallRecord
from ...base.units import seconds
from ...engine.process.nested import caller
from ...engine.tensors import as_bits, is_plain, mark_written, needed_by_autograd
from ...ranks.group.abort import give_up
from ...ranks.group.group import Group
from ..ops import PremulSum
from ..work import Work, worker_of
from .checking import checking
from .drive import Run, drive
from .known import CallKey, keep
from .planning import make_plan
from .request import Request, Tensors, is_one

Action = Callable[[str | None], Any]
"""Makes a planned call. Takes the user's line, if it is known; returns the result."""
_Pair = tuple[torch.Tensor, torch.Tensor]
_NOTHING = torch.empty(0, dtype=torch.uint8, device="cpu")


class Call(checking):
    """`with Call(what, ...) as call:` is the block that checks and plans a call; then `call.run()` makes it.

    what: as in `shortcut`, or the collective's name for a call that consists of several steps.
    action: makes the call. returns: does `run` return its result?
    """

    def __init__(
        self, what: CallKey | str, group: Group | None = None, async_op: bool = False, timeout_s: float | None = None
    ) -> None:
        self.what: CallKey = (what, None, 0, None) if isinstance(what, str) else what
        super().__init__(group, self.what[0])
        self.algorithm, self.async_op, self.timeout_s = self.what[3], async_op, timeout_s
        self.record, self.returns = CallRecord(self.collective), False
        self.action: Action = lambda _: None

    def plan(self, request: Request) -> None:
        """Plan the call. Raises ArgumentError or DTypeError for a request that cannot be made."""
        self.record = request.record
        self.action = plan(self.group, request, self.algorithm, self.timeout_s, self.what)

    def agree(self, says: CallRecord | None = None) -> None:
        """Plan a barrier, at which all ranks have the same record."""
        self.plan(Request("barrier", _NOTHING, None, None, in_place=True, says=says))

    def run(self) -> Any:
        """Make the call, and return its result if `returns` is set. With `async_op`: return a Work at once."""
        group, action = self.group, self.action
        if self.async_op or (group.worker is not None and group.worker.busy):
            where = caller()
            with checking(group, self.collective):
                worker = worker_of(group)
            work = worker.submit(self.record, partial(action, where))
            if self.async_op:
                return work
            result = self._result(work, where)
        else:
            result = action(None)
        return result if self.returns else None

    def _result(self, work: Work[Any], where: str) -> Any:
        """The result of a call queued behind background calls. The time limit covers them all."""
        try:
            return work.result(self.timeout_s)
        except WaitTimeout as late:
            if work.is_completed():
                raise
            group, call, details = self.group, f"{self.record} ({where})", " Earlier calls of this group come first."
            give_up(group, f"interrupted by {type(late).__name__}", call)
            raise WaitTimeout(call, self.timeout_s or 0.0, late.missing, group.rank, details, group.named) from None


def plan(
    group: Group, request: Request, algorithm: Any = None, timeout_s: Any = None, known_as: CallKey | None = None
) -> Action:
    """Plan the run of a table; the returned action may run it much later and many times.

    known_as: keep the plan under this name for `shortcut`.
    """
    limit_s, made, factor = None if timeout_s is None else seconds(timeout_s), request, None
    if isinstance(request.op, PremulSum):
        made, factor = _sum(request, group.rank), request.op.factor
    result = made.out
    if group.span is not None:
        from .over_hosts.relay import Relay  # groups on one host do without

        Relay.serve(group, group.span)
    plain, taken, given = _on_plain_tensors(made, group, in_place=request.in_place, copies=factor is not None)
    bound = make_plan(group, plain, algorithm)
    if known_as is not None and not taken:
        keep(group, bound, known_as, plain)
    run, written = Run.of(bound, plain, algorithm), needed_by_autograd(made.written_on(group.rank))

    def action(where: str | None) -> Tensors:
        if taken:
            with checking(group, request.collective):
                copy(taken)
                if factor is not None:
                    _scale(plain.inp, factor)
        drive(group, run, limit_s, where)
        if given:
            copy(given)
        mark_written(written)
        return result

    return action


def _on_plain_tensors(
    request: Request, group: Group, *, in_place: bool, copies: bool
) -> tuple[Request, list[_Pair], list[_Pair]]:
    """The request on plain tensors (copies if the user's are not plain); the (to, from) pairs to copy before a run;
    the pairs to copy after. Outputs are copied before too: a rank may keep its own (rank 0 in exscan).

    in_place: the user's call is in place. With `keep_inputs` it then works on copies: the user's tensors change only
    when it has succeeded.
    copies: all inputs are copies.
    """
    taken: list[_Pair] = []

    def plain(tensor: torch.Tensor, keeps: bool = False) -> torch.Tensor:
        if is_plain(tensor) and not keeps:
            return tensor
        bits = as_bits(tensor.data)  # .data: a version counter of its own
        made = torch.empty_like(bits, memory_format=torch.contiguous_format)
        taken.append((made, bits))
        return made.view(tensor.dtype) if made.dtype != tensor.dtype else made

    def each(tensors: Tensors, keeps: bool = False) -> Tensors:
        return plain(tensors, keeps) if is_one(tensors) else tensors and [plain(tensor, keeps) for tensor in tensors]

    out = each(request.out, bool(in_place and group.engine.config.keep_inputs))
    given = [(bits, made) for made, bits in taken] if request.written_on(group.rank) else []
    return request._replace(inp=out if request.in_place else each(request.inp, copies), out=out), taken, given


def copy(pairs: Iterable[_Pair]) -> None:
    """Copy the second of each pair to the first: works for inference tensors, in any mode, on any thread."""
    with torch.inference_mode():
        for to, source in pairs:
            to.copy_(source)


def _sum(request: Request, rank: int) -> Request:
    """A premultiplied sum as a sum; the caller scales the inputs."""
    out = None if request.collective == "reduce" and rank != request.root else request.out
    words = ", ".join(filter(None, [request.words, "premultiplied"]))
    return request._replace(out=out, op="sum", in_place=False, words=words)


def _scale(tensors: Tensors, factor: float) -> None:
    with torch.inference_mode():
        for tensor in [tensors] if is_one(tensors) else tensors or ():
            tensor.mul_(factor)
