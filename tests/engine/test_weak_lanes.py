"""Threads of a rank that share a move, on a processor that keeps no order. See test_weak_memory.py."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.engine.test_weak_kernels import PLAN, TARGET, set_state
from tests.support.weak_memory import Memory, Process, as_python, explore
from unisono.engine.compile.program import DONE, FAILED, LaneWord, PlanWord, RowWord, StateWord
from unisono.engine.kernels import lanes

LANES, ROW, OUT, OWN = (n << 45 for n in range(1, 5))


class Blocked(Exception):
    """A thread waits, or has done what a scene is about."""


def block(*_: int) -> None:
    raise Blocked


def set_lanes(memory: Memory) -> int:
    """The state of a rank that shares moves of 16 elements, in two pieces; the last move was of another plan."""
    state = set_state(memory, 0)
    for at, word, value in (
        (state, StateWord.LANES, LANES), (PLAN, PlanWord.ITEM, 8), (PLAN, PlanWord.LANES, 2),
        (PLAN, PlanWord.LANE_BYTES, 64), (ROW, RowWord.NIN, 1), (ROW, RowWord.NOUT, 1),
        (LANES, LaneWord.PLAN, PLAN + (1 << 20)),
    ):  # fmt: skip
        memory.write(at + 8 * word, value)
    return state


def share(memory: Memory, state: int, others: dict[str, Any]) -> int:
    quiet = {"pause": block, "sched_yield": block, **others}
    status: int = as_python(lanes.move_by_lanes, memory, quiet)(PLAN, ROW, 0, 16, TARGET, state)
    return status


def goes_wrong(caller: dict[str, Any], helper: dict[str, Any]) -> Iterator[bool]:
    """A helper makes both pieces of a move, and fails with the second one: is it another move, or does the caller not
    see what the helper has written?
    """

    def run(choose: Callable[[int], int]) -> bool:
        memory = Memory(choose)
        thread, other = memory.running, Process()
        state, plans = set_lanes(memory), list[int]()
        memory.running = other
        memory.know_all()
        memory.running = thread

        def move(plan: int, *_: int) -> int:
            memory.write(OUT + 8 * len(plans), 1)
            plans.append(plan)
            return DONE if len(plans) == 1 else FAILED

        def take(*_: int) -> None:
            memory.running = other
            as_python(lanes._take, memory, {"move": move, **helper})(LANES, OWN, 0)
            memory.running = thread

        try:
            status = share(memory, state, {"_take": take, **caller})
        except Blocked:
            return plans != [PLAN, PLAN]
        return (plans, status) != ([PLAN, PLAN], FAILED) or not all(memory.read(OUT + 8 * k) for k in range(2))

    return explore(run)


def test_helpers_and_caller_see_each_other() -> None:
    results = list(goes_wrong({}, {}))
    assert len(results) > 1
    assert not any(results)
    assert any(goes_wrong({"swap": "unordered_swap"}, {}))
    assert any(goes_wrong({"load_acquire": "read"}, {}))
    assert any(goes_wrong({}, {"add": "unordered_add"}))


def helper_sleeps_on(moment: int, what: str, caller: dict[str, Any], helper: dict[str, Any]) -> Iterator[bool]:
    """A helper goes to sleep while its caller shares a move, or ends the helpers: does it sleep on?

    moment: when it does so. 0: before the caller changes the word of the job; 1: between that and its wake; 2: then.
    what: the function of the caller.
    """

    def run(choose: Callable[[int], int]) -> bool:
        memory = Memory(choose)
        thread, other = memory.running, Process()
        state, asleep = set_lanes(memory), False

        def doze(_: int, at: int, seen: int, __: int) -> None:
            nonlocal asleep
            memory.fence()  # the system's, before it compares
            asleep = memory.read(at - 4) >> 32 == seen
            raise Blocked

        def sleep(now: int) -> None:
            if now == moment:
                memory.running = other
                quiet = {"_HELPER_SPINS": 1, "pause": lambda: None, "futex_wait": doze, "_take": block, **helper}
                with suppress(Blocked):
                    as_python(lanes.help_lanes, memory, quiet)(LANES, 0, 0)
                memory.running = thread

        def changing(name: str) -> Callable[[int, int], int]:
            def change(at: int, value: int) -> int:
                before: int = getattr(memory, caller.get(name, name))(at, value)
                if at == LANES + 8 * LaneWord.JOB:
                    sleep(1)
                return before

            return change

        def wake(*_: int) -> None:
            nonlocal asleep
            asleep = False

        here = {**caller, "swap": changing("swap"), "add": changing("add"), "syscall": wake, "_take": block}
        sleep(0)
        with suppress(Blocked):
            share(memory, state, here) if what == "share" else as_python(lanes.end, memory, here)(LANES)
        sleep(2)
        return asleep

    return explore(run)


@pytest.mark.parametrize(("what", "change"), [("share", "swap"), ("end", "add")])
def test_helper_or_caller_sees_the_other(what: str, change: str) -> None:
    def any_sleeps_on(caller: dict[str, Any], helper: dict[str, Any]) -> bool:
        return any(result for moment in range(3) for result in helper_sleeps_on(moment, what, caller, helper))

    assert not any_sleeps_on({}, {})
    assert any_sleeps_on({change: f"unordered_{change}"}, {})


def test_unannounced_helper_sleeps_on() -> None:
    assert any(any(helper_sleeps_on(moment, "share", {}, {"add": lambda *_: 0})) for moment in range(3))
