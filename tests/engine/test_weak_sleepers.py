"""Ranks that sleep, and threads of a rank that share a move, on a processor that keeps no order.

See test_weak_memory.py. Here the processes take turns in the midst of a function.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.support.weak_memory import (
    CONTROL,
    LANES,
    OUT,
    OWN,
    PLAN,
    ROW,
    TARGET,
    Memory,
    Mutant,
    Scene,
    as_python,
    outcomes,
    put_words,
    set_state,
)
from unisono.base.linux import FUTEX
from unisono.engine.compile.program import DONE, FAILED, LaneWord, LineWord, PlanWord, RowWord, StateWord
from unisono.engine.kernels import lanes, waiting

FLAG, GOAL = (CONTROL + 8 * word for word in (LineWord.ASLEEP, LineWord.PROGRESS))


def wakes(memory: Memory) -> bool:
    """A rank goes to sleep while another writes: does one of them see what the other has written?

    Before the writer stores its word, between that and its look at the flag, or then.
    """
    moment, asleep, woken = memory.choose(3), False, False

    def syscall(number: int, *_: int) -> None:
        nonlocal woken
        if number == FUTEX:
            woken = True
            return
        for process in (memory.reader, memory.writer, memory.reader):
            if "membarrier" not in process.without:
                memory.by(process, Memory.fence)

    def add_half(at: int, count: int) -> None:
        memory.release(at, memory.acquire(at) + count)

    others = {"syscall": syscall, "load_half": memory.acquire, "store_half": memory.release, "add_half": add_half}

    def doze(_: Memory) -> None:
        nonlocal asleep
        as_python(waiting.announce, memory, **others)(FLAG)
        asleep = not as_python(waiting.has_changed, memory, **others)(GOAL, 1, 0, 0)

    def sleep(now: int) -> None:
        if now == moment:
            memory.by(memory.reader, doze)

    sleep(0)
    as_python(waiting.publish_and_wake, memory, **others, signal_fence=lambda: sleep(1))(GOAL, 1, FLAG)
    sleep(2)
    return woken or not asleep


class Blocked(Exception):
    """A thread waits, or has done what a scene is about."""


def block(*_: int) -> None:
    raise Blocked


def share(memory: Memory, **others: Any) -> int:
    """Share a move of 16 elements, in two pieces; the last move was of another plan."""
    state = put_words(memory, set_state(memory, 0), {StateWord.LANES: LANES})
    put_words(memory, PLAN, {PlanWord.ITEM: 8, PlanWord.LANES: 2, PlanWord.LANE_BYTES: 64})
    put_words(memory, ROW, {RowWord.NIN: 1, RowWord.NOUT: 1})
    put_words(memory, LANES, {LaneWord.PLAN: PLAN + (1 << 20)})
    memory.by(memory.reader, Memory.know_all)
    quiet = {"pause": block, "sched_yield": block, **others}
    return int(as_python(lanes.move_by_lanes, memory, **quiet)(PLAN, ROW, 0, 16, TARGET, state))


def helps(memory: Memory) -> bool:
    """A helper makes both pieces of a move, and fails with the second one: is it this move, and does the caller see
    what the helper has written?
    """
    plans: list[int] = []

    def move(plan: int, *_: int) -> int:
        memory.write(OUT + 8 * len(plans), 1)
        plans.append(plan)
        return DONE if len(plans) == 1 else FAILED

    def take(*_: int) -> None:
        memory.by(memory.reader, lambda m: as_python(lanes._take, m, move=move)(LANES, OWN, 0))

    try:
        status = share(memory, _take=take)
    except Blocked:
        return plans == [PLAN, PLAN]
    return (plans, status) == ([PLAN, PLAN], FAILED) and all(memory.read(OUT + 8 * k) for k in range(2))


def wakes_helpers(act: Callable[..., object], memory: Memory, **helper: Any) -> bool:
    """A helper goes to sleep while its caller shares a move, or ends the helpers: does it sleep on?

    Before the caller changes the word of the job, between that and its wake, or then.
    """
    moment, asleep = memory.choose(3), False

    def doze(_: int, at: int, seen: int, __: int) -> None:
        nonlocal asleep
        memory.fence()  # the system's, before it compares
        asleep = memory.read(at - 4) >> 32 == seen
        raise Blocked

    def help_out(_: Memory) -> None:
        quiet = {"_HELPER_SPINS": 1, "pause": lambda: None, "futex_wait": doze, "_take": block, **helper}
        with suppress(Blocked):
            as_python(lanes.help_lanes, memory, **quiet)(LANES, 0, 0)

    def sleep(now: int) -> None:
        if now == moment:
            memory.by(memory.reader, help_out)

    def changing(change: Callable[[int, int], int]) -> Callable[[int, int], int]:
        def changed(at: int, value: int) -> int:
            before = change(at, value)
            if at == LANES + 8 * LaneWord.JOB:
                sleep(1)
            return before

        return changed

    def wake(*_: int) -> None:
        nonlocal asleep
        asleep = False

    sleep(0)
    with suppress(Blocked):
        act(memory, swap=changing(memory.swap), add=changing(memory.add), syscall=wake, _take=block)
    sleep(2)
    return not asleep


class Case(NamedTuple):
    """A scene, and mutants with which it must fail."""

    scene: Scene
    mutants: tuple[Mutant, ...]


SCENES = {
    "sleeper": Case(wakes, ({"writer": "membarrier"}, {"writer": "membarrier", "reader": "membarrier"})),
    "helper at work": Case(helps, ({"writer": "swap"}, {"writer": "acquire"}, {"reader": "add"})),
    "helper asleep": Case(partial(wakes_helpers, share), ({"writer": "swap"},)),
    "helper at its end": Case(
        partial(wakes_helpers, lambda m, **others: as_python(lanes.end, m, **others)(LANES)),
        ({"writer": "add"},),
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_processes_see_each_other(name: str) -> None:
    results = list(outcomes(SCENES[name].scene))
    assert len(results) > 1
    assert all(results)


@pytest.mark.parametrize("name", SCENES)
def test_without_a_fence_they_do_not(name: str) -> None:
    for mutant in SCENES[name].mutants:
        assert not all(outcomes(SCENES[name].scene, mutant)), mutant


def test_unannounced_helper_sleeps_on() -> None:
    assert not all(outcomes(partial(wakes_helpers, share, add=lambda *_: 0)))


@pytest.mark.parametrize("moment", range(3))
def test_wake_before_sleep_is_heard(moment: int) -> None:
    """One for another word, before each step of a rank that goes to sleep: it sleeps only if it can be woken."""
    memory, words, steps = Memory(lambda _: 0), Counter[int](), iter(range(3))
    plain: dict[str, Callable[..., Any]] = {
        "load_half": words.__getitem__, "store_half": words.__setitem__, "syscall": lambda *_: 0,
        "add_half": lambda at, count: words.update({at: count}),
    }  # fmt: skip

    def late(step: Callable[..., Any]) -> Callable[..., Any]:
        def after(*what: int) -> Any:
            if next(steps) == moment:
                as_python(waiting.wake, memory, **plain)(FLAG)
            return step(*what)

        return after

    woken = {name: late(plain[name]) for name in ("load_half", "store_half", "syscall")}
    ticket, _ = as_python(waiting.announce, memory, **plain | woken)(FLAG)
    assert not (ticket == words[FLAG + 4] and words[FLAG] == 0)
