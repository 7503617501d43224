"""`chaos`: let one rank fail at a chosen place of a chosen call, in tests of programs that should survive it.

The kernel runs as ever. To stop a rank within a call, it gets a copy of its program that stops at a row. Then the fault
happens, and the rank goes on with its own program.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from ...base.errors import ArgumentError, MismatchError
from ...base.records import CallRecord
from ...base.units import seconds
from ...calls.dispatch.over_hosts.relay import Relay
from ...engine.compile.plan import Plan
from ...engine.compile.program import WAITING, PlanWord, StateWord
from ...ranks.group.group import Group
from ...ranks.group.initialize import group_or_default

_BRIEF_NS = 1000

FAULTS = ("kill", "exit", "stop", "hold", "delay", "refuse", "mismatch")
"""What can happen to a rank; see `chaos`."""


@contextlib.contextmanager
def chaos(
    *,
    at: tuple[str, int] | tuple[str, int, str, int],
    kill: int | None = None,
    exit: int | None = None,  # noqa: A002  the name of what happens
    stop: int | None = None,
    hold: int | None = None,
    delay: int | None = None,
    refuse: int | None = None,
    mismatch: int | None = None,
    duration_s: float = 1.0,
    group: Group | None = None,
) -> Iterator[None]:
    """Let one rank fail once in this block, at a chosen call, to test that a program survives it.

    Every rank enters the block. One of the faults names the rank that fails.

    Args:
        at: The collective and the number of its call in the block, counted from 1. With "row" and a number, counted
            from 0, the rank fails inside the call, before that row (copy or sum) of its program.
        kill: End the rank by SIGKILL.
        exit: End it by os._exit.
        stop: Stop it by SIGSTOP for `duration_s`.
        hold: Let it compute for `duration_s` without releasing the GIL.
        delay: Let it sleep for `duration_s`.
        refuse: Let it raise ArgumentError instead of making the call; not possible at a row.
        mismatch: Let it make a different call; not possible at a row.
        duration_s: Seconds.
        group: None: the default group.

    Raises:
        ArgumentError: The fault, collective or row is invalid.

    Example::

        with chaos(kill=2, at=("all_reduce", 17, "row", 3)):
            train()
    """
    named = {"kill": kill, "exit": exit, "stop": stop, "hold": hold, "delay": delay, "refuse": refuse,
             "mismatch": mismatch}  # fmt: skip
    chosen = [(name, rank) for name, rank in named.items() if rank is not None]
    if len(chosen) != 1:
        raise ArgumentError(f"chaos: got {len(chosen)} faults, expected one of {', '.join(FAULTS)} with a rank")
    (fault, rank), group, duration_s = chosen[0], group_or_default(group), seconds(duration_s, "duration_s")
    if not 0 <= rank < group.size:
        raise ArgumentError(f"{fault}: got rank {rank}, expected 0 to {group.size - 1} in group {group.name!r}")
    row = at[3] if len(at) == 4 else None
    if len(at) not in (2, 4) or (len(at) == 4 and at[2] != "row"):
        raise ArgumentError(f'at: got {at}, expected a call such as ("all_reduce", 1) or ("all_reduce", 1, "row", 2)')
    if row is not None and fault in ("refuse", "mismatch"):
        raise ArgumentError(f'at: got {at}, but {fault} cannot happen at a row. Leave out "row".')
    if group.rank != rank:
        yield
        return
    if group.span is not None:
        Relay.serve(group, group.span)  # else the first call does it, and takes the injector's place
    injector = _Injector(group, fault, (at[0], at[1], row), duration_s)
    try:
        group.run = injector.run
        yield
    finally:
        if group.run == injector.run:  # the group has not been broken meanwhile
            group.run = injector.original


class _Injector:
    """Stands before the kernel on the rank that shall fail."""

    def __init__(self, group: Group, fault: str, at: tuple[str, int, int | None], duration_s: float) -> None:
        self.group, self.fault, self.duration_s = group, fault, duration_s
        self.collective, self.turn, self.row = at
        self.original: Callable[..., int] = group.run
        self._calls, self._latest, self._over = 0, 0, False

    def run(self, address: int, inp: int, out: int, state: int) -> int:
        group = self.group
        plan = next((plan for plan in group.plans.values() if plan.address == address), None)
        if self._over or plan is None or plan.record.collective != self.collective:
            return self.original(address, inp, out, state)
        if group.engine.call_number != self._latest:
            self._latest = group.engine.call_number
            self._calls += 1
        if self._calls != self.turn:
            return self.original(address, inp, out, state)
        if self.row is not None and isinstance(plan, Plan):
            status = self._run_to(plan, self.row, inp, out, state)
            if status != WAITING | group.rank << 8 or group.words[StateWord.PC] != self.row:
                return status  # the rank waits for another rank, and will come again
        self._over = True
        self._fail(plan)
        return self.original(address, inp, out, state)

    def _run_to(self, plan: Plan, row: int, inp: int, out: int, state: int) -> int:
        usual = self.group.words[StateWord.LOOK_UP_NS]
        self.group.words[StateWord.LOOK_UP_NS] = min(usual, _BRIEF_NS)
        try:
            self._stopping = stop_at_row(plan, row)  # the call may need it later
            return self.original(self._stopping.address, inp, out, state)
        finally:
            self.group.words[StateWord.LOOK_UP_NS] = usual

    def _fail(self, plan: Plan) -> None:
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.fault == "exit":
            os._exit(3)
        elif self.fault == "stop":
            subprocess.Popen(["sh", "-c", f"sleep {self.duration_s}; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.fault == "hold":
            ctypes.PyDLL(None).usleep(ctypes.c_uint(int(self.duration_s * 1e6)))
        elif self.fault == "delay":
            time.sleep(self.duration_s)
        else:
            self._make_another_call(plan.record)

    def _make_another_call(self, record: CallRecord) -> None:
        group, engine = self.group, self.group.engine
        why = "chaos refuses this call" if self.fault == "refuse" else ""
        other = record._replace(refused=why, words="" if why else "chaos", where="chaos")
        engine.arena.board(group.rank).set_call(number := engine.call_number, other)
        engine.refuse_call()
        if why:
            raise ArgumentError(why)
        calls = {rank: other if rank == group.rank else record for rank in range(group.size)}
        raise MismatchError(number, calls, [group.rank], group.named)


def stop_at_row(plan: Plan, row: int) -> Plan:
    """A copy of a rank's plan that stops before a row; the plan itself goes on from there.

    Raises ArgumentError if the program has no such row.
    """
    rows = len(plan.kept[0])
    if not 0 <= row < rows:
        raise ArgumentError(f"row: got {row}, but the program of this {plan.record.collective} has {rows} rows")
    words = plan.words.copy()
    words[PlanWord.STOP] = row
    return replace(plan, address=words.ctypes.data, words=words)
