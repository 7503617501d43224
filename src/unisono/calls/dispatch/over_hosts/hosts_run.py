"""Run plans over several hosts: enter the call, go through its parts, and come back when a wait takes long.

After a mismatch a carrier may still move messages of the refused call. So the memory of these messages is not free
(`RefusedCalls`).
"""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ....base.errors import InternalError, OutOfMemory
from ....base.units import format_bytes
from ....engine.carrier import Carrier, Lost
from ....engine.compile.program import (
    AT_ONCE,
    DONE,
    IN_TIME,
    LOOK_UP_SHARE,
    LOOK_UPS,
    LOST,
    WAITING,
    StateWord,
)  # fmt: skip
from ....engine.memory.arena import Arena
from ....engine.tape import LEAVE, LEFT, MEET, RUN
from ....hosts.messages import BEGIN, TapeRun
from ....hosts.span import Span
from ....ranks.group.group import Group, keep_for_good
from ....ranks.group.sub_groups import Making
from .far_run import FarRun
from .hosts_plan import PLANS, SpanPlan, plan_span
from .hosts_steps import ENTER, entry, forget_all, steps_of

_OF: WeakKeyDictionary[Any, RefusedCalls] = WeakKeyDictionary()

_CALL, _SLEEPS, _LOOK_UP = int(StateWord.CALL), int(StateWord.SLEEPS), int(StateWord.LOOK_UP_NS)

_NAP_SHARE, _SHORTEST_S, _LONGEST_S = 20, 20e-6, 500e-6
"""Between two looks a rank waits for a part of its wait so far, at least _SHORTEST_S and at most _LONGEST_S."""

_BRISK_BYTES = 32 << 10
"""Where ranks and processes that compute share processors, a yield costs a rank its claim to its processor for a time
slice, and a rank that sleeps keeps it. So in calls on longer blocks, ranks that outnumber processors sleep at once. In
shorter calls they yield first, because a wake-up takes longer than a yield.
"""


class RefusedCalls:
    """All refused calls of a carrier. The carrier keeps the memory of their messages. This object keeps the user's
    tensors that the carrier may still send from. All this memory is free when the carrier is dropped.
    """

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._calls = self._nbytes = 0

    @classmethod
    def of(cls, carrier: Carrier) -> RefusedCalls:
        return _OF.setdefault(carrier, cls())

    def add(self, nbytes: int) -> None:
        """Count one more refused call. nbytes: the memory of its messages."""
        self._calls += 1
        self._nbytes += nbytes

    def keep(self, memory: Iterable[object]) -> None:
        """Keep the storages of the last call's tensors. memory: has them, perhaps among other objects."""
        for storage in memory:
            if isinstance(storage, torch.UntypedStorage) and storage.data_ptr() not in self._storages:
                self._storages[storage.data_ptr()] = storage
                self._nbytes += storage.nbytes()

    def check(self, arena: Arena, ranks: int) -> None:
        """Raise OutOfMemory if refused calls take more memory than the host has left, if each rank has as many."""
        try:
            arena.check_free(self._nbytes * ranks)
        except OutOfMemory as error:
            raise OutOfMemory(
                f"{self._calls} calls over hosts that ended with a MismatchError hold {format_bytes(self._nbytes)} on "
                f"this rank until the world is closed, and {format_bytes(arena.free_bytes)} are free on this host. Let "
                "all ranks make the same calls: see the MismatchError that this program catches."
            ) from error


class Relay:
    """Takes the kernel's place in a group over hosts: `run` is called in the same way, and runs plans over hosts, one
    call after the other. For each it is the `SpanningCall`.
    """

    def __init__(self, group: Group, span: Span) -> None:
        self._group, self._span, self._engine = weakref.ref(group), span, group.engine
        self._rank, self._world_ranks, self._arena = group.rank, group.world_ranks, group.world.engine.arena
        self.details = ""
        self.failure: BaseException | None = None
        self._tape: TapeRun | None = None
        self._compiled = FarRun(group, span)

    @classmethod
    def serve(cls, group: Group, span: Span) -> None:
        """Give this group over hosts a relay, and what makes its plans."""
        if span.plan is None:
            group.run, span.plan = cls(group, span).run, plan_span

    def run(self, address: int, inp: int, out: int, _: int) -> int:
        """Begin a call by the plan at this address, or go on with the call that has begun; return an outcome, see
        `engine.compile.program`.
        """
        span = self._span
        if span.call is self._compiled or (span.call is None and address not in PLANS):
            return self._compiled.run(address, inp, out)
        if span.call is None:
            self._begin(PLANS[address], inp, out)
        try:
            status = next(self._stops, DONE)
        except BaseException as error:
            if self._tape is not None and self._engine.words[_CALL] != self._number:
                with suppress(Lost):
                    self._tape.advance()
                span.call = None
                if isinstance(error, Lost):  # a message to a rank that has gone: the next call finds that out
                    return DONE
                raise  # such as Ctrl-C, right after the end of the call
            self.failure = error
            return LOST | (self._world_ranks.index(error.peer) if isinstance(error, Lost) else self._rank) << 8
        if status == DONE:
            span.call = None
        return status

    def _begin(self, plan: SpanPlan, inp: int, out: int) -> None:
        group = self._group()
        if group is None:
            raise InternalError("a call is made for a group that the program has dropped")
        self._tape, self._number, self.details = None, self._engine.words[_CALL], ""
        self._is_brisk = plan.nbytes <= _BRISK_BYTES
        self._stops = self._make(group, plan, inp, out)
        self._span.call = self

    def drop(self, *, refused: bool) -> None:
        """See `SpanningCall`. Peers may still read and write the messages and all memory of the call: this rank does
        not know whether all have ended the call before this one.
        """
        self._stops.close()
        self._span.call = self.failure = None
        run, self._tape = self._tape, None
        if run is not None:
            run.give_up()
        memory, local = forget_all(self._span), self._span.local
        if local is not None and local.engine.unfinished:
            local.engine.sign_off(tag=False)
            keep_for_good(memory)  # ranks of this host read it in a part of the call, and may be late
        self._span.keeps_refused = None
        if refused and run is not None and run.turn > ENTER and isinstance(self._arena, Arena):  # it always is
            calls = RefusedCalls.of(self._span.carrier)
            self._span.keeps_refused = calls.keep
            calls.add(sum(block.nbytes for block in memory))
            calls.check(self._arena, len(self._span.here))

    def _make(self, group: Group, plan: SpanPlan, inp: int, out: int) -> Generator[int, None, None]:
        """Make the call; yields an outcome when it has to stop. inp, out: addresses, as for the kernel."""
        span, engine = self._span, self._engine
        if engine.behind():
            span.ask()
            yield from self._until(lambda: next(iter(engine.behind()), None), _nap)
        engine.none_is_behind()
        if plan.has_insides and span.local is None:
            entering = TapeRun(span.carrier, [*entry(plan, self._number)], engine.state)
            entering.begin(self._number)
            while not entering.advance():
                yield entering.status
            yield from self._make_local(group)
        for one in (engine, span.local.engine) if plan.beside and span.local is not None else (engine,):
            if one.words[_SLEEPS]:
                one.words[_SLEEPS] = IN_TIME if self._is_brisk or engine.most_spins else AT_ONCE
        steps = steps_of(group, span, plan, self._number, inp, out)
        self._tape = run = steps.run
        with nullcontext() if span.local is None else span.local.lock:
            while not run.advance():
                if run.row.kind == RUN:
                    if outcome := steps.insides[run.row.words[0]].after(span.local, span.here, run.status):
                        yield outcome
                elif run.row.kind == MEET:
                    yield run.status
                elif run.row.kind == LEAVE:  # in a very short call, no rank waits, and none has looked
                    yield from self._look()
                elif run.row.kind == LEFT:
                    yield from self._until_left(run)
                else:
                    yield from self._look() or (WAITING | self._world_ranks.index(run.waiting_for) << 8,)

    @property
    def compares(self) -> bool:
        """See `SpanningCall`. This rank has made all parts before the messages."""
        return self._tape is not None and self._tape.turn > BEGIN

    def _look(self) -> Sequence[int]:
        """Outcomes by which `attend` looks at peers after urgent news: two, because it raises at its second look."""
        return 2 * (WAITING | self._rank << 8,) if self._span.must_look() else ()

    def _make_local(self, group: Group) -> Iterator[int]:
        """Make the group of the ranks of this host. All of them have entered this call."""
        here = self._span.here
        members = [group.world_ranks[rank] for rank in here]
        making = Making(group, here.index(group.rank), members, f"{group.name} on one host")

        def missing() -> int | None:
            seat = making.missing()
            return None if seat is None else here[seat]

        for status in self._until(missing, _nap):
            self.details = f" It was {making.call}.{making.why}"
            yield status
        self.details, self._span.local = "", making.group(group.world)  # a group that its parent holds does not hold it

    def _until_left(self, run: TapeRun) -> Iterator[int]:
        """Wait until messages have left, and the tape is at another kind of row. They leave while this rank waits."""

        def missing() -> int | None:
            rank = -1 if run.advance() or run.row.kind != LEFT else run.waiting_for
            return None if rank < 0 else self._world_ranks.index(rank)

        def pause(waited_s: float, most_s: float) -> None:
            news = ctypes.addressof(self._span.news), self._span.seen.value + 1
            self._span.carrier.wait(*news, 0, 0, int(waited_s * 1e9), int(_pause_s(waited_s, most_s) * 1e9))

        return self._until(missing, pause)

    def _until(self, missing: Callable[[], int | None], pause: Callable[[float, float], object]) -> Iterator[int]:
        """Wait until no rank is missing. Yields WAITING | rank << 8 after LOOK_UP_NS of waiting, see `StateWord`; later
        on after a longer stay each time, see LOOK_UPS.

        pause(waited_s, most_s): waits a little after a wait of waited_s, at most for most_s.
        """
        began = since = now = time.monotonic()
        while (rank := missing()) is not None:
            yield from self._look()
            look_up_s = self._engine.words[_LOOK_UP] * 1e-9
            left_s = since + min(max(look_up_s, (now - began) / LOOK_UP_SHARE), LOOK_UPS * look_up_s) - now
            if left_s <= 0.0:
                yield WAITING | rank << 8
                since = time.monotonic()
            else:
                pause(now - began, left_s)
            now = time.monotonic()


def _pause_s(waited_s: float, most_s: float) -> float:
    return min(max(waited_s / _NAP_SHARE, _SHORTEST_S), _LONGEST_S, most_s)


def _nap(waited_s: float, most_s: float) -> None:
    time.sleep(_pause_s(waited_s, most_s))
