"""Make a call over several hosts: enter it, go through its parts, and watch the ranks of all hosts meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ....base.errors import InternalError, MismatchError, OutOfMemory
from ....base.units import seconds
from ....engine.compile.program import LineWord
from ....engine.memory.arena import Arena
from ....engine.process.nested import check_nested, holds
from ....engine.tensors.combining import combiner
from ....engine.tensors.plain import dtype_name
from ....hosts.messages import Exchange
from ....ranks.group.group import Group
from ..plan_cache import as_list
from ..request import Request, Tensors
from .hosts_plan import SpanPlan
from .hosts_steps import Steps, WaveSteps, forget_all, steps_of
from .hosts_wait import SpanWait
from .refused_calls import RefusedCalls

_HELD: list[object] = []
"""Memory of calls that have ended their groups: late ranks of this host may still access it."""


@holds("group")
def run_span(
    group: Group,
    plan: SpanPlan,
    request: Request,
    inp: Tensors,
    out: Tensors,
    timeout_s: float | None,
    where: str | None,
) -> None:
    """Make a call. inp, out: contiguous. Raises what `ranks.failures.attend` raises."""
    if group.lock.locked():
        check_nested(group, str(group))
    with group.lock:
        group.check_usable()
        _SpanCall(group, plan, request, timeout_s, where).make(inp, out)


class _SpanCall:
    def __init__(
        self, group: Group, plan: SpanPlan, request: Request, timeout_s: float | None, where: str | None
    ) -> None:
        if group.span is None:
            raise InternalError(f"group {group.name!r} is on one host")
        self._group, self._span, self._plan, self._request, self._where = group, group.span, plan, request, where
        self._host, self._number = group.host, group.host.call_number
        self._allowed_s = seconds(group.timeout_s if timeout_s is None else timeout_s)
        self._wait = SpanWait(group, group.span, plan, self._allowed_s, where)
        self._begun: list[Exchange] = []
        self._tensors: tuple[Tensors, ...] = ()
        self._gate_passed = False

    def make(self, inp: Tensors, out: Tensors) -> None:
        """Make the call."""
        try:
            self._host.enter_call(self._plan.signature, self._plan.note)
            self._wait.until_here(self._all_here, LineWord.NUMBER + (self._number & 1))
            self._wait.all_entered_here = True
            if self._span.has_bad_news():
                self._wait.check()
            steps = steps_of(self._group, self._span, self._plan, self._request, inp, out, self._allowed_s)
            self._tensors = () if self._plan.copied else (inp, out)
            for wave in steps.waves:
                self._begin(wave)
            for wave in steps.waves:
                self._finish(wave)
            if not self._plan.copied:
                self._let_go(steps)
            elif self._request.written_on(self._group.rank):
                steps.out.give(out)
            self._host.skip_call()
        except BaseException as error:
            cause = self._give_up(error)
            if cause is None:
                self._host.skip_call()
                raise
            self._wait.watch.give_up(cause)
            self._span.tell()
            if cause is not error:
                raise cause from error
            raise
        finally:
            self._wait.end()

    def _give_up(self, error: BaseException) -> BaseException | None:
        """Leave the messages and all memory of the call: peers may still write there, and read it. That all have ended
        the call before this one is not known now. The error that ends the group; None: the group goes on.
        """
        for exchange in self._begun:
            exchange.give_up()
        scratch = forget_all(self._span)
        if not isinstance(error, MismatchError):
            _HELD.extend((scratch, self._tensors))
            return self._wait.cause(error)
        arena = self._group.world.host.arena
        if self._begun and isinstance(arena, Arena):  # that of the world always is
            nbytes = sum(memory.nbytes for memory in scratch) + sum(exchange.nbytes for exchange in self._begun)
            refused = RefusedCalls.of(self._span.carrier)
            refused.add(nbytes, [tensor for tensors in self._tensors for tensor in as_list(tensors)])
            try:
                refused.check(arena, len(self._span.here))
            except OutOfMemory as full:
                return full
        return None

    def _all_here(self) -> int | None:
        """A rank of this host that has not entered this call."""
        number, signature = self._number, self._plan.signature
        return next((rank for rank in self._span.here if self._host.signature(rank, number) != signature), None)

    def _across_done(self) -> int | None:
        """A rank of this host whose messages are not done."""
        return next((rank for rank in self._plan.waits_for if self._host.across(rank) < self._number), None)

    # What is moved

    def _begin(self, wave: WaveSteps) -> None:
        """Make the parts before the messages, and send the first of these; earlier waves go on, too."""
        for part in wave.before:
            part(self._where)
        for copy in wave.brings:
            copy.make()
        self._begun += wave.exchanges
        self._advance()

    def _advance(self) -> None:
        for exchange in self._begun:
            if not exchange.done:
                exchange.advance()

    def _finish(self, wave: WaveSteps) -> None:
        """Take what comes from other hosts, and make the parts after it. The first wave tells that all have entered."""

        def missing() -> int | None:
            self._advance()
            waits = [exchange.waiting_for for exchange in wave.exchanges if not exchange.done]
            return self._group.world_ranks.index(waits[0]) if waits else None

        self._wait.until_far(missing, self._begun)
        if self._request.op == "avg":
            for exchange, sums in zip(wave.exchanges, wave.sums, strict=True):
                self._wait.until_far(self._sent(exchange), [exchange])
                for total in sums:
                    self._average(total)
        if not self._gate_passed:
            if wave.exchanges:
                self._host.set_across()
            self._wait.until_here(self._across_done, LineWord.ACROSS)
            self._host.pass_gate()
            self._gate_passed = True
        for part in wave.after:
            part(self._where)
        for copy in wave.copies:
            copy.make()

    def _average(self, total: torch.Tensor) -> None:
        combiner(dtype_name(self._request.like.dtype), "avg", self._group.size, last=True)(total, [total])

    def _sent(self, exchange: Exchange) -> Callable[[], int | None]:
        """The rank that has not taken yet what is sent from places, which nobody may write before."""
        return lambda: None if exchange.finish_sends() else self._group.world_ranks.index(exchange.waiting_for)

    def _let_go(self, steps: Steps) -> None:
        """The user's tensors are the user's again."""
        for exchange in steps.exchanges:
            self._wait.until_far(self._sent(exchange), [exchange])
        if not steps.kept:
            steps.close()
