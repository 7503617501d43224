"""A rank that sleeps, and the rank that wakes it: all orders of their steps. See `unisono.engine.kernels.waiting`.

Each process has a buffer of stores that have not reached memory. test_weak_kernels.py runs the kernels' source itself,
on processors that keep no order at all, for one sleeper and one writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

SLEEPER = ("ticket", "announce", "fence everywhere", "look", "sleep")
WRITER = ("store", "load", "clear", "raise", "wake")


class Process(NamedTuple):
    """A process of the model.

    number: of a writer, whose own word it writes. at: its next step. goal: for how many writes a sleeper waits, or how
    many a writer has still to make. ticket: what a sleeper has read of the counter. seen: what a writer has read of the
    flag. buffer: stores that have not reached memory: where, and what.
    """

    steps: tuple[str, ...]
    goal: int
    number: int = 0
    at: int = 0
    asleep: bool = False
    ticket: int = 0
    seen: int = 0
    buffer: tuple[tuple[int, int], ...] = ()


FLAG, COUNTER, WORDS = 0, 1, 2
State = tuple[tuple[int, ...], tuple[Process, ...]]
"""Memory, which is the flag, the counter, and the writers' words; and the processes."""


def stored(memory: tuple[int, ...], buffer: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Memory, as a process sees it whose stores are in this buffer."""
    words = list(memory)
    for where, value in buffer:
        words[where] = value
    return tuple(words)


def after(state: State, who: int) -> Iterator[State]:
    """What one step of a process leads to."""
    memory, processes = state
    me = processes[who]

    def with_me(changed: Process, memory: tuple[int, ...] = memory) -> State:
        return memory, (*processes[:who], changed, *processes[who + 1 :])

    if me.buffer:  # the oldest store reaches memory
        yield with_me(me._replace(buffer=me.buffer[1:]), stored(memory, me.buffer[:1]))
    if me.asleep or me.at == len(me.steps):
        return
    mine, further = stored(memory, me.buffer), me._replace(at=me.at + 1)
    match me.steps[me.at]:
        case "ticket":
            yield with_me(further._replace(ticket=mine[COUNTER]))
        case "announce":
            yield with_me(further._replace(buffer=(*me.buffer, (FLAG, 1))))
        case "fence everywhere":
            everything = memory
            for process in processes:
                everything = stored(everything, process.buffer)
            empty = tuple(process._replace(buffer=()) for process in processes)
            yield everything, (*empty[:who], further._replace(buffer=()), *empty[who + 1 :])
        case "look":
            yield with_me(me._replace(at=len(me.steps)) if sum(mine[WORDS:]) >= me.goal else further)
        case "sleep":  # the system compares the counter in memory; a sleeper that is woken begins anew
            yield with_me(me._replace(at=0, asleep=mine[COUNTER] == me.ticket, buffer=()), mine)
        case "sleep while the flag is set":
            yield with_me(me._replace(at=0, asleep=mine[FLAG] == 1, buffer=()), mine)
        case "store":
            word = WORDS + me.number
            yield with_me(further._replace(buffer=(*me.buffer, (word, mine[word] + 1))))
        case "load":
            yield with_me(further._replace(seen=mine[FLAG]))
        case "clear":
            yield with_me(further._replace(buffer=(*me.buffer, (FLAG, 0))) if me.seen else further)
        case "raise":
            raised = stored(mine, ((COUNTER, mine[COUNTER] + 1),))
            yield with_me(further._replace(buffer=()), raised) if me.seen else with_me(further)
        case "wake" | "wake none" as kind:
            again = me._replace(goal=me.goal - 1, at=0 if me.goal > 1 else len(me.steps), seen=0)
            if not me.seen or kind == "wake none":
                yield with_me(again)
                return
            awake = tuple(process._replace(asleep=False) for process in processes)
            yield mine, (*awake[:who], again._replace(buffer=()), *awake[who + 1 :])


class Scene(NamedTuple):
    """goals: of each sleeper. writers: each writes so often that together they reach all goals. left: the flag."""

    goals: tuple[int, ...]
    writers: int = 1
    left: int = 0


SCENES = [
    Scene(goals, writers, left)
    for goals, writers in [((1,), 1), ((2,), 1), ((1, 1), 1), ((1, 2), 1), ((2, 2), 1), ((2,), 2), ((1, 2), 2)]
    for left in (0, 1)
]


def loses_a_wake_up(sleeper: tuple[str, ...], writer: tuple[str, ...], scene: Scene) -> bool:
    """Whether an order of steps leaves a sleeper asleep for ever."""
    sleepers = [Process(sleeper, goal) for goal in scene.goals]
    writes = -(-max(scene.goals) // scene.writers)
    writers = [Process(writer, writes, number) for number in range(scene.writers)]
    start: State = (scene.left, 0, *[0] * scene.writers), (*sleepers, *writers)
    seen, todo = {start}, [start]
    while todo:
        state = todo.pop()
        following = [new for who in range(len(state[1])) for new in after(state, who)]
        if not following and any(process.asleep for process in state[1]):
            return True
        for new in following:
            if new not in seen:
                seen.add(new)
                todo.append(new)
    assert len(seen) > 20
    return False


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_no_order_of_stores_loads_and_fences_loses_a_wake_up(scene: Scene) -> None:
    assert not loses_a_wake_up(SLEEPER, WRITER, scene)


MUTANTS = {
    "no fence": (("ticket", "announce", "look", "sleep"), WRITER),
    "looks too early": (("ticket", "announce", "look", "fence everywhere", "sleep"), WRITER),
    "announces too late": (("ticket", "look", "announce", "fence everywhere", "sleep"), WRITER),
    "fences too early": (("ticket", "fence everywhere", "announce", "look", "sleep"), WRITER),
    "takes its ticket too late": (("announce", "fence everywhere", "look", "ticket", "sleep"), WRITER),
    "does not look": (("ticket", "announce", "fence everywhere", "sleep"), WRITER),
    "no counter": (("announce", "fence everywhere", "look", "sleep while the flag is set"), WRITER),
    "loads too early": (SLEEPER, ("load", "store", "clear", "raise", "wake")),
    "does not raise": (SLEEPER, ("store", "load", "clear", "wake")),
    "clears too late": (SLEEPER, ("store", "load", "raise", "clear", "wake")),
    "wakes none": (SLEEPER, ("store", "load", "clear", "raise", "wake none")),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_model_finds_what_is_left_out_or_in_another_order(mutant: str) -> None:
    sleeper, writer = MUTANTS[mutant]
    assert any(loses_a_wake_up(sleeper, writer, scene) for scene in SCENES)
