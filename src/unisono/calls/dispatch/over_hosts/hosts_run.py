"""Run plans over several hosts: enter the call, go through its parts, and watch the ranks of all hosts meanwhile."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from ....base.errors import InternalError, MismatchError, OutOfMemory
from ....engine.compile.program import DONE, LineWord
from ....engine.memory.arena import Arena
from ....engine.tensors.combining import combiner
from ....engine.tensors.plain import dtype_name
from ....hosts.messages import Exchange
from ....hosts.span import Span
from ....ranks.group.group import Group
from .hosts_plan import PLANS, SpanPlan
from .hosts_steps import WaveSteps, forget_all, steps_of
from .hosts_wait import SpanWait
from .refused_calls import RefusedCalls

_NUMBER, _ACROSS = int(LineWord.NUMBER), int(LineWord.ACROSS)


class Relay:
    """Stands where a group on one host has the kernel: `run` is called in the same way, and runs plans over hosts."""

    def __init__(self, group: Group, span: Span) -> None:
        self._group, self._span = weakref.ref(group), span

    @classmethod
    def serve(cls, group: Group, span: Span) -> None:
        """Let this group over hosts have one."""
        if cls not in group.kept:
            group.kept[cls] = relay = cls(group, span)
            group.run = relay.run

    def run(self, address: int, inp: int, out: int, _: int) -> int:
        """Make a call by the plan that has this address: DONE. Raises what `ranks.failures.attend` raises."""
        group, span = self._group(), self._span
        if group is None:
            raise InternalError("a call is made for a group that nobody holds")
        group.check_usable()
        try:
            _SpanCall(group, span, PLANS[address]).make(inp, out)
        finally:
            span.where = span.timeout_s = None
        return DONE


class _SpanCall:
    def __init__(self, group: Group, span: Span, plan: SpanPlan) -> None:
        self._group, self._span, self._plan, self._host = group, span, plan, group.host
        self._allowed_s = group.timeout_s if span.timeout_s is None else span.timeout_s
        if span.local is not None:
            span.local.timeout_s = self._allowed_s
        self._waits: SpanWait | None = None
        self._begun: list[Exchange] = []
        self._all_entered_here = self._gate_passed = False

    @property
    def _wait(self) -> SpanWait:
        """Made when something has to be waited for, or the call fails."""
        if self._waits is None:
            self._waits = SpanWait(self._group, self._span, self._plan, self._allowed_s)
        self._waits.all_entered_here = self._all_entered_here
        return self._waits

    def make(self, inp: int, out: int) -> None:
        """Make the call. inp, out: addresses, as for the kernel."""
        plan, span = self._plan, self._span
        try:
            self._number = number = self._host.enter_call(plan)
            if self._missing_here() is not None:
                self._wait.until_here(self._missing_here, _NUMBER + (number & 1))
            self._all_entered_here = True
            if span.has_bad_news():
                self._wait.check()
            steps = steps_of(self._group, span, plan, number, inp, out)
            if not plan.shared:
                plan.inp.copy(inp, steps.given)
            for wave in steps.waves:
                self._begin(wave)
            for wave in steps.waves:
                self._finish(wave)
            if plan.shared:
                for exchange in steps.exchanges:
                    self._wait_until_sent(exchange)
                if not steps.kept:
                    steps.close()
            elif plan.writes:
                plan.out.copy(out, steps.result, back=True)
            self._host.skip_call()
        except BaseException as error:
            cause = self._give_up(error)
            if cause is None:
                self._host.skip_call()
                raise
            self._wait.watch.give_up(cause)
            span.tell()
            if cause is not error:
                raise cause from error
            raise
        finally:
            if self._waits is not None:
                self._waits.end()

    def _give_up(self, error: BaseException) -> BaseException | None:
        """Leave the messages and all memory of the call: peers may still write there, and read it. That all have ended
        the call before this one is not known now. The error that ends the group; None: the group goes on.
        """
        for exchange in self._begun:
            exchange.give_up()
        scratch = forget_all(self._span)
        if not isinstance(error, MismatchError):
            return self._wait.cause(error)
        arena, self._span.keeps_refused = self._group.world.host.arena, None
        if self._begun and isinstance(arena, Arena):  # that of the world always is
            refused = RefusedCalls.of(self._span.carrier)
            self._span.keeps_refused = refused.keep
            refused.add(sum(memory.nbytes for memory in scratch) + sum(exchange.nbytes for exchange in self._begun))
            try:
                refused.check(arena, len(self._span.here))
            except OutOfMemory as full:
                return full
        return None

    def _missing_here(self) -> int | None:
        """A rank of this host that has not entered this call."""
        number, signature, host = self._number, self._plan.signature, self._host
        return next((rank for rank in self._plan.beside if host.signature(rank, number) != signature), None)

    def _across_done(self) -> int | None:
        """A rank of this host whose messages are not done."""
        return next((rank for rank in self._plan.waits_for if self._host.across(rank) < self._number), None)

    # What is moved

    def _begin(self, wave: WaveSteps) -> None:
        """Make the parts before the messages, and send the first of these; earlier waves go on, too."""
        for part in wave.before:
            part(self._span.where)
        for copy in wave.brings:
            copy()
        self._begun += wave.exchanges
        self._advance()

    def _advance(self) -> bool:
        """Let messages go on; True when all that have begun are done."""
        done = True
        for exchange in self._begun:
            done = (exchange.done or exchange.advance()) and done
        return done

    def _finish(self, wave: WaveSteps) -> None:
        """Take what comes from other hosts, and make the parts after it. The first wave tells that all have entered."""

        def missing() -> int | None:
            if self._advance():
                return None
            waits = [exchange.waiting_for for exchange in wave.exchanges if not exchange.done]
            return self._group.world_ranks.index(waits[0]) if waits else None

        if missing() is not None:
            self._wait.until_far(missing, self._begun)
        if self._plan.request.op == "avg":
            for exchange, sums in zip(wave.exchanges, wave.sums, strict=True):
                self._wait_until_sent(exchange)
                for total in sums:
                    self._average(total)
        if not self._gate_passed:
            if wave.exchanges and self._plan.beside:
                self._host.set_across()
            if self._across_done() is not None:
                self._wait.until_here(self._across_done, _ACROSS)
            self._host.pass_gate()
            self._gate_passed = True
        for part in wave.after:
            part(self._span.where)
        for copy in wave.copies:
            copy()

    def _average(self, total: torch.Tensor) -> None:
        dtype = dtype_name(self._plan.request.like.dtype)
        combiner(dtype, "avg", self._group.size, last=True)(total, [total])

    def _wait_until_sent(self, exchange: Exchange) -> None:
        """Until what is sent from places, which nobody may write before, has been taken."""
        if not exchange.finish_sends():
            self._wait.until_far(self._sent(exchange), [exchange])

    def _sent(self, exchange: Exchange) -> Callable[[], int | None]:
        return lambda: None if exchange.finish_sends() else self._group.world_ranks.index(exchange.waiting_for)
