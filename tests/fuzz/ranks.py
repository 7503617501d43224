"""How a rank runs a program: step by step, with a check of all that it gets."""

import random
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import unisono
from tests.fuzz import programs
from tests.fuzz.api import Native, Torch
from tests.fuzz.messages import FORMS as OBJECT_FORMS
from tests.fuzz.messages import TENSORS, WAYS, coalesced, exchange_objects, send_and_receive
from tests.support.lanes import without_limits
from tests.support.matrix import FORMS, Case, ops
from tests.support.matrix_driver import CHANGED, begin


def play(program: programs.Program, meeting: str) -> list[str]:
    """Run a program on this rank. Returns what went wrong, step by step: wrong values, and an error that ended it."""
    warnings.filterwarnings("ignore", "ComplexHalf|BComplex32")
    api = Native() if program.api == "unisono" else Torch(program.settings, meeting)
    if "lanes" in dict(program.settings):  # more than one
        without_limits()
    player = Player(api, api.world)
    player.play(program.steps)
    return player.failures


def start(step: Any, api: Native | Torch, group: Any) -> Callable[[], str]:
    """Make the step's call in this group. Returns what waits for its end, and says what is wrong, or nothing."""
    work, wrong = None, ""
    match step:
        case programs.Call():
            return _call(step, api, group)
        case programs.Coalesced():
            return coalesced(step, group)
        case programs.Messages():
            return send_and_receive(step, api, group)
        case programs.Objects():
            wrong = exchange_objects(step, api, group)
        case programs.MakeGroup():
            api.leave(api.new_group(range(api.place(group)[1]), group))
        case programs.Barrier():
            work = api.collective(step, [], group, step.algorithm)

    def finish() -> str:
        if work is not None:
            work.wait()
        return wrong

    return finish


MISTAKES = ("algorithm", "argument", "barrier")
"""A name that no algorithm has, an argument that no call takes, another call."""


def _call(step: programs.Call, api: Native | Torch, group: Any) -> Callable[[], str]:
    me, size = api.place(group)
    mistakes = {rank % size: mistake for rank, mistake in step.mistakes}
    mine = mistakes.get(me, "")

    def make(arguments: list[Any]) -> Any:
        if mine == "barrier":
            return api.collective(programs.Barrier(async_op=step.async_op), [], group, None)
        if mine == "argument":
            arguments[-1] = "bogus"
        return api.collective(step.case, arguments, group, "bogus" if mine == "algorithm" else step.algorithm)

    if not mistakes:
        return begin(step.case, me, size, make)

    def told(error: Exception) -> str:
        """What is wrong with an error: it must name ranks with a mistake, and no others; inputs must not change."""
        if isinstance(error, unisono.MismatchError):
            odd = {rank for rank, call in error.calls.items() if call.refused or call.collective == "barrier"}
            untold = {rank for rank, call in error.calls.items() if not call.collective}  # as long as a rank is behind
            right = mine in ("", "barrier") and odd <= mistakes.keys() and bool(odd or untold & mistakes.keys())
        else:
            right = mine not in ("", "barrier") and isinstance(error, (unisono.UsageError, ValueError, TypeError))
        right = right and (step.case.alias or CHANGED not in getattr(error, "__notes__", ()))
        return "" if right else f"{mistakes}: {type(error).__name__}: {error}"

    try:
        ended = begin(step.case, me, size, make)
    except Exception as error:  # noqa: BLE001  whatever it is, it is looked at
        said = told(error)
        return lambda: said

    def finish() -> str:
        try:
            return f"it ends without an error: {ended() or 'as if all was well'}"
        except Exception as error:  # noqa: BLE001  as above
            return told(error)

    return finish


class Player:
    """Makes steps, on a rank or in one of its threads."""

    def __init__(self, api: Native | Torch, world: Any) -> None:
        self.failures: list[str] = []
        self._api = api
        self._groups: dict[str, Any] = {"world": world}
        self._made: list[Any] = []
        self._pending: list[tuple[programs.Step, Callable[[], str]]] = []

    def play(self, steps: Sequence[programs.Step]) -> None:
        step: programs.Step = programs.Wait()
        try:
            for step in steps:
                self._make(step)
            self._wait(random.Random(len(steps)))
            for group in self._made:
                self._api.leave(group)
        except Exception as error:  # noqa: BLE001  the others end with it, and the finding is reported
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last.filename.rpartition('/src/')[2]}:{last.lineno}"
            self.failures.append(f"{step}: {type(error).__name__} at {where}: {error}")

    def _make(self, step: programs.Step) -> None:
        match step:
            case programs.Late():
                if self._api.place(self._groups["world"])[0] == step.rank:
                    time.sleep(step.delay_s)
            case programs.Wait():
                self._wait(random.Random(step.seed))
            case programs.Split():
                me = unisono.get_rank()
                self._keep(step.name, unisono.split(step.colors[me], step.keys[me]) or None)
            case programs.MakeGroup():
                if (parent := self._groups.get(step.parent)) is not None:
                    size = self._api.place(parent)[1]
                    self._keep(step.name, self._api.new_group(sorted({rank % size for rank in step.ranks}), parent))
            case programs.Threads():
                self._threads(step)
            case _ if (group := self._groups.get(step.group)) is not None:
                self._pending.append((step, start(step, self._api, group)))
                if not (isinstance(step, programs.Messages) or getattr(step, "async_op", False)):
                    self._finish(self._pending.pop())

    def _wait(self, draw: random.Random) -> None:
        pending, self._pending = self._pending, []
        draw.shuffle(pending)
        for one in pending:
            self._finish(one)

    def _finish(self, pending: tuple[programs.Step, Callable[[], str]]) -> None:
        if wrong := pending[1]():
            self.failures.append(f"{pending[0]}: {wrong}")

    def _keep(self, name: str, group: Any) -> None:
        self._groups[name] = group
        if group is not None:
            self._made.append(group)

    def _threads(self, step: programs.Threads) -> None:
        world = self._groups["world"]
        everybody = range(self._api.place(world)[1])
        players = [Player(self._api, self._api.new_group(everybody, world)) for _ in step.branches]
        with ThreadPoolExecutor(len(players)) as pool:
            list(pool.map(Player.play, players, step.branches))
        for player in players:
            self.failures += player.failures
            self._made.append(player._groups["world"])


def make_every_call(
    group: Any, lengths: Sequence[int] = (10, 40_000), seed: int = 0, api: type[Native] = Native
) -> None:
    """Make a call of each kind in this group, at once, and in the background on shared tensors. All must be right."""
    steps: list[programs.Step] = [programs.Barrier(), *(programs.Objects(form, seed=seed) for form in OBJECT_FORMS)]
    for n, later in product(lengths, (False, True)):
        how: Any = {"async_op": later, "root": 1, "seed": seed}
        made = [Case(form, "float32", ops(form, "float32")[0], n, shared=later, exact=True, **how) for form in FORMS]
        steps += map(programs.Call, made)
        steps += [programs.Coalesced(form, (("float32", n), ("float32", 3)), **how) for form in TENSORS[:4]]
        steps.append(programs.Wait())
    steps += [
        programs.Messages(way, "float32", n, 10 * n + k, seed=seed) for n in lengths for k, way in enumerate(WAYS)
    ]
    player = Player(api(), group)
    player.play((*steps, programs.Messages("ring", "float32", 5, 1, shift=0)))
    assert not player.failures, player.failures
