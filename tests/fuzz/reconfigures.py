"""Rounds in which processes are killed or stopped while they reconfigure a group, at times and places drawn by lot.

After each round all that are left form a group, and make a call.
"""

import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from tests.support import warm_python
from tests.support.member import PHASES, Member, form, tell_all
from tests.support.programs import Python, processes
from tests.support.waiting import until

MOST = 4  # how many processes form a group
LIMIT_S, SHORT_S, MORE_S = 40.0, 3.0, 8.0
"""The time-out of a call without stopped processes, and with them; and by how much it may take longer."""
_KILL, _STOP = int(signal.SIGKILL), int(signal.SIGSTOP)  # a round prints as Python
_LATEST_S = 0.12  # a group is formed by then


class Fault(NamedTuple):
    """place: of the process, among those of the round. phase: one of `PHASES`; "": after this time."""

    place: int
    how: int
    phase: str = ""
    after_s: float = 0.0


class Round(NamedTuple):
    size: int
    faults: tuple[Fault, ...]
    as_set: bool = False


def draw(rng: random.Random) -> Round:
    size = rng.randint(1, MOST)
    faults = []
    for index in rng.sample(range(size), rng.choice([0, 1, 1, 1, 2]) if size > 2 else min(size, rng.randint(0, 1))):
        phase, after_s = ("", rng.uniform(0, _LATEST_S)) if rng.random() < 0.6 else (rng.choice(PHASES), 0.0)
        faults.append(Fault(index, rng.choice([_KILL, _STOP]), phase, after_s))
    return Round(size, tuple(faults), rng.random() < 0.2)


class Players:
    """The processes of all rounds: those that are left of one play the next, with newcomers."""

    def __init__(self, start: Python, hosts: int = 1) -> None:
        self._start, self._hosts, self._made, self.uuid = start, hosts, 0, 0
        self.members: list[Member] = []

    def _newcomer(self, **variables: object) -> Member:
        self._made += 1
        variables |= {"UNISONO_HOST_ID": self._made % self._hosts, "LIMIT_S": LIMIT_S, "QUIET": 1}
        return Member(self._start, "unisono", **variables)

    def play(self, one: Round) -> list[str]:
        phases = {fault.place: fault for fault in one.faults if fault.phase}
        killed = {fault.place for fault in one.faults if fault.how == _KILL}
        fresh = {k: self._newcomer(PHASE=fault.phase, HOW=fault.how) for k, fault in phases.items()}
        while len(self.members) < one.size - len(fresh):
            self.members.append(self._newcomer())
        kept = iter(self.members)
        some = [fresh[index] if index in fresh else next(kept) for index in range(one.size)]
        self.members = [*some, *kept]
        self.uuid += 2
        answers, took_s = self._form(some, one)
        wrong = self._complaints(one, some, answers, took_s)
        for member in fresh.values():
            member.send(_KILL)
        for index, answer in enumerate(answers):
            if answer is None or index in fresh or index in killed:  # it may have answered before
                self.members.remove(some[index])
        if self.members:
            ends, size = form(self.members, self.uuid + 1, LIMIT_S), len(self.members)
            sums = tell_all(self.members, "total")
            if ends != [[rank, size] for rank in range(size)] or sums != [[size * (size + 1) / 2]] * size:
                wrong.append(f"then, {size} ranks: {ends}, {sums}")
        return wrong

    def _form(self, some: list[Member], one: Round) -> tuple[list[Any], list[float]]:
        """What the members answer, None for those that have died or hang, and after how long."""
        handles = [member.handle for member in some]
        limit_s = SHORT_S if any(fault.how == _STOP for fault in one.faults) else LIMIT_S
        began = time.monotonic()
        for member in some:
            member.ask("form", self.uuid, handles, limit_s, one.as_set)
        for fault in sorted(one.faults, key=lambda fault: fault.after_s):
            if not fault.phase:
                time.sleep(max(0.0, began + fault.after_s - time.monotonic()))
                some[fault.place].send(fault.how)
        stopped = {fault.place for fault in one.faults if fault.how == _STOP}
        answers, took_s = [None] * one.size, [0.0] * one.size
        for index in sorted(range(one.size), key=lambda index: index in stopped):
            if index in stopped:  # it may only now be about to stop
                with suppress(AssertionError):
                    until(some[index].has_paused, LIMIT_S)
                some[index].send(signal.SIGCONT)
            with suppress(EOFError, TimeoutError):
                answers[index] = some[index].answer(LIMIT_S + 20)
            took_s[index] = time.monotonic() - began
        return answers, took_s

    def _complaints(self, one: Round, some: list[Member], answers: list[Any], took_s: list[float]) -> list[str]:
        order = sorted(range(one.size), key=lambda index: some[index].handle) if one.as_set else [*range(one.size)]
        faulty = {fault.place for fault in one.faults}
        blamed = {order.index(index) for index in faulty}
        killed = {fault.place for fault in one.faults if fault.how == _KILL}
        stops = killed != faulty
        wrong = []
        for index, answer in enumerate(answers):
            rank = order.index(index)
            if answer is None:
                wrong += [f"rank {rank} has died, or hangs"] * (index not in killed)
            elif isinstance(answer, list):
                wrong += [f"rank {rank} is {answer}"] * (answer != [rank, one.size])
            elif not faulty:
                wrong.append(f"rank {rank}: {answer}")
            elif index not in faulty:
                named = {answer["rank"], *answer["missing"]} - {None}
                kinds = {"PeerGone", "WaitTimeout"} if stops else {"PeerGone"}
                wrong += [f"rank {rank}: {answer}"] * (not named <= blamed or answer["error"][0] not in kinds)
                limit_s = (SHORT_S if stops else 0) + MORE_S
                wrong += [f"rank {rank} has waited for {took_s[index]:.1f} s"] * (took_s[index] > limit_s)
        made = [index for index, answer in enumerate(answers) if isinstance(answer, list) and index not in killed]
        groups = {some[index].tell("group") for index in made}
        return wrong + [f"{len(groups)} groups of ranks {made}"] * (len(groups) > 1)


PARTS = ()  # a round is not made smaller


def watch(one: Round) -> list[str]:
    """What is wrong in a round of new processes."""
    with processes() as start:
        return Players(start).play(one)


def draw_and_run(seed: str) -> Iterator[tuple[list[Round], list[str]]]:
    """Rounds without end, and what is wrong in each."""
    rng = random.Random(seed)
    warm_python.install()
    with processes() as start:
        players = Players(start)
        while True:
            yield [one := draw(rng)], players.play(one)
