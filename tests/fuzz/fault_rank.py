"""One rank of a scene: it makes the calls, suffers its faults, recovers from those of others, and tells what it saw."""

import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import unisono
from tests.fuzz import programs
from tests.fuzz.api import Native
from tests.fuzz.fault_scene import (
    BRIEF,
    COLLECTIVES,
    DEADLY,
    HARMLESS,
    LATE_S,
    OF_HOSTS,
    STEPS,
    STOPPING,
    Call,
    Fault,
    Scene,
)
from tests.fuzz.ranks import start
from tests.support.cluster import PORT, enter, join
from tests.support.fake_hosts import send_with_spare, sentinel_of
from tests.support.lanes import without_limits
from tests.support.matrix_driver import CHANGED, IN_PLACE, wanted
from tests.support.waiting import once_waiting, until
from unisono.engine.memory.board import Board
from unisono.hosts import far
from unisono.ranks.group import survivors
from unisono.schedule import Hosts
from unisono.tools.testing import chaos

_AT_ROW: dict[str, Any] = {"kill": "kill", "os_exit": "exit", "pause": "stop", "hold": "hold", "delay": "delay"}
"""What can happen at a row -> the name that `chaos` has for it."""


_ENDS: dict[str, Callable[[], object]] = {
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "SIGABRT": os.abort,
    "SIGRTMAX": lambda: os.kill(os.getpid(), signal.SIGRTMAX),
    "os_exit": lambda: os._exit(3),
    "os_exit well": lambda: os._exit(0),
    "os_exit of a thread": lambda: threading.Thread(target=os._exit, args=(5,)).start(),
    "exec": lambda: os.execvp("sleep", ["sleep", "1000"]),  # noqa: S606  that is the point
    "exit": lambda: sys.exit(3),
}
_AT_ONCE_S = 5.0  # how long a call of a group that is over may take: less than any that waits


class _End(BaseException):
    """Ends the rank's function well, before its program has ended."""


def play(scene: Scene, folder: str, names: Sequence[str] = ()) -> None:
    """The life of a rank. Files in the folder tell when its faults happened, and at last what it has seen.

    names: of the namespaces of the scene's hosts, if it has any.
    """
    if names:
        world, hosts = unisono.init(), Hosts.parse(scene.hosts)
        enter(names[hosts.host_of(world.rank)])
        group, store = join(world.rank, hosts, PORT)
        group.timeout_s = world.timeout_s
        vars(group)["store"] = store  # rank 0 serves it
    if unisono.init().engine.config.lanes > 1:  # by UNISONO_LANES
        without_limits()
    rank = _Rank(scene, Path(folder))
    try:
        rank.live()
    except _End:
        return
    except unisono.LeftOut as error:
        rank.tell("left out", text=str(error))
    rank.end()


class _Rank:
    def __init__(self, scene: Scene, folder: Path) -> None:
        self._scene, self._folder = scene, folder
        self._me = unisono.get_rank()
        self._said: list[dict[str, Any]] = []
        self._faults = [fault for fault in scene.faults if fault.rank == self._me]
        self._awaited = {fault.call for fault in scene.faults if fault.moment == "awaited"}
        self._subgroups: dict[tuple[int, ...], unisono.Group] = {}

    def tell(self, what: str, **facts: Any) -> None:
        """Note an event."""
        self._said.append({"what": what, "at": time.monotonic(), **facts})

    def end(self) -> None:
        """Close the group, and leave all that was seen where the parent finds it."""
        unisono.shutdown()
        threads = [one.name for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]
        self.tell("end", threads=threads)
        path = self._folder / f"{self._me}.part"
        path.write_text(json.dumps(self._said))
        path.rename(self._folder / f"{self._me}.json")

    def live(self) -> None:
        """Make all calls; after a failure, make those again that the survivor that is furthest behind has to make."""
        for members in sorted({call.members for call in self._scene.calls if call.members}):
            if group := unisono.new_group(members):
                self._subgroups[members] = group
        (self._folder / f"ready {self._me}").touch()
        until(lambda: len(list(self._folder.glob("ready *"))) == self._scene.ranks)
        step, error = 0, None
        while True:
            try:
                if error is not None:
                    step, error = self._recover(error, step), None
                while step < len(self._scene.calls):
                    self._call(step)
                    step += 1
                unisono.barrier()
            except unisono.LeftOut:
                raise
            except (unisono.PeerError, unisono.WaitTimeout) as failure:
                self._heard(failure, step)
                error = failure
            except (unisono.MismatchError, unisono.ArgumentError) as failure:
                self._heard(failure, step)
                step += 1
            else:
                return

    def _call(self, number: int) -> None:
        """Make one call, and look at what comes out."""
        call = self._scene.calls[number]
        group = self._subgroups.get(call.members) if call.members else unisono.init()
        if group is None:
            return
        step = call.step(number)
        if isinstance(step, programs.Call):  # it takes long: not while faults are due
            wanted(replace(step.case, shared=False, async_op=False), group.size)
        try:
            with ExitStack() as stack:
                if number in self._awaited - {fault.call for fault in self._faults}:
                    self._awaited.remove(number)
                    once_waiting((self._folder / f"waits {number} {self._me}").touch)
                for fault in self._faults:
                    if fault.call == number and not fault.in_recovery:
                        stack.enter_context(self._suffer(fault, call, group))
                if wrong := start(step, Native(), group)():
                    self.tell("wrong value", call=number, members=group.world_ranks, text=wrong)
        except unisono.UnisonoError as error:
            keeps = self._scene.keep_inputs or call.name not in IN_PLACE
            if keeps and CHANGED in getattr(error, "__notes__", ()):
                self.tell("input changed", call=number)
            if call.name in COLLECTIVES and isinstance(error, (unisono.PeerError, unisono.WaitTimeout)):
                self._expect_over(group, error)
            raise

    def _expect_over(self, group: unisono.Group, error: unisono.UnisonoError) -> None:
        """After an error of a collective all later calls raise the same, at once."""
        began, again = time.monotonic(), None
        try:
            unisono.barrier(group)
        except unisono.UnisonoError as raised:
            again = type(raised)
        if again is not type(error) or time.monotonic() - began > _AT_ONCE_S:
            self.tell("not over", after=repr(error), again=f"{again}")

    def _heard(self, error: unisono.UnisonoError, step: int) -> None:
        """Note an error, its ranks as ranks of the world."""
        world_ranks = tuple(getattr(error, "world_ranks", ())) or range(self._scene.ranks)

        def of_world(name: str) -> list[int]:
            return [world_ranks[rank] for rank in getattr(error, name, ())]

        self.tell(
            "error", kind=type(error).__name__, step=step, failed=of_world("failed"), missing=of_world("missing"),
            odd=of_world("odd"), text=str(error)[:1500], pid=getattr(error, "pid", 0),
            culprit=world_ranks[getattr(error, "rank", 0)],
        )  # fmt: skip
        self._wait_for_others(*(words for words in ("KeyboardInterrupt", "is too full") if words in str(error)))

    def _wait_for_others(self, *words: str) -> None:
        """Let all survivors hear of this before any of them goes on: then it is about an earlier call."""
        for word in words:
            (self._folder / f"{word} {self._me}").touch()
            until(lambda: len(list(self._folder.glob(f"{word} *"))) == self._scene.ranks - len(self._scene.dead))  # noqa: B023

    def _recover(self, error: unisono.UnisonoError, step: int) -> int:
        """Go on in a smaller group; the call from which all go on."""
        world = unisono.init()
        late = self._missing(error, world)
        with ExitStack() as stack:
            for fault in list(self._faults):
                if fault.in_recovery:
                    self._faults.remove(fault)
                    stack.enter_context(self._suffer(fault, Call("barrier"), world))
            smaller = self._shrink(world, late)
        if not (smaller is world.shrink() is unisono.init() and smaller.world_ranks[smaller.rank] == self._me):
            self.tell("wrong value", text=f"{smaller}, {world.shrink()}, {unisono.init()}")
        for members, group in list(self._subgroups.items()):
            left_out = [rank for rank, there in enumerate(group.world_ranks) if there not in smaller.world_ranks]
            self._subgroups[members] = group.shrink(without=left_out)
        first = torch.tensor([step])
        unisono.all_reduce(first, "min")
        self.tell("recovered", members=smaller.world_ranks, step=int(first))
        return int(first)

    def _shrink(self, world: unisono.Group, late: set[int]) -> unisono.Group:
        """Make the call until it returns: without the ranks that are late, if it is hasty or all of them are frozen."""
        rng, scene = random.Random(self._me), self._scene
        while True:
            limit_s = rng.choice([0.02, 0.05, 0.3]) if scene.hasty else 1.0 if scene.late_to_shrink else None
            try:
                return world.shrink(without=late, timeout_s=limit_s)
            except unisono.OutOfMemory as error:
                self._heard(error, -1)
            except unisono.WaitTimeout as error:
                self._heard(error, -1)
                missing = self._missing(error, world)
                if scene.hasty or {world.world_ranks[rank] for rank in missing} <= scene.frozen:
                    late |= missing
            except KeyboardInterrupt:
                self._wait_for_others("KeyboardInterrupt")

    @staticmethod
    def _missing(error: BaseException, group: unisono.Group) -> set[int]:
        """The ranks of a group that a time-out names."""
        if not isinstance(error, unisono.WaitTimeout):
            return set()
        world_ranks = error.world_ranks or group.world.world_ranks
        named = {world_ranks[rank] for rank in error.missing}
        return {rank for rank, there in enumerate(group.world_ranks) if there in named}

    @contextmanager
    def _suffer(self, fault: Fault, call: Call, group: unisono.Group) -> Iterator[None]:
        """Let the fault happen around what is within the block."""
        moment, _, when = fault.moment.partition(" ")
        if moment == "row" and call.name in COLLECTIVES:
            with self._at_row(fault, call, group, int(when)):
                yield
            return
        if moment == "awaited":
            until(lambda: len(list(self._folder.glob(f"waits {fault.call} *"))) == self._scene.ranks - 1)
        if moment in ("before", "awaited"):
            self._happen(fault, group)
        elif moment in STEPS:
            self._happen_at_step(fault, group, moment, int(when or 0))
        elif moment in ("within", "shrink"):
            threading.Thread(target=self._happen_later, args=(fault, group, float(when)), daemon=True).start()
        yield
        if moment == "after":
            self._happen(fault, group)

    @contextmanager
    def _at_row(self, fault: Fault, call: Call, group: unisono.Group, row: int) -> Iterator[None]:
        self._mark(fault)
        began = time.monotonic()
        try:
            with chaos(
                at=(call.name, 1, "row", row), group=group, duration_s=LATE_S, **{_AT_ROW[fault.how]: group.rank}
            ):
                yield
        except unisono.ArgumentError:  # there is no such row
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.how in DEADLY:
            self._happen(fault, group)  # the call was over without it
        self._faults.remove(fault)
        self.tell("late", by=time.monotonic() - began)

    def _happen_later(self, fault: Fault, group: unisono.Group, delay_s: float) -> None:
        time.sleep(delay_s)
        self._happen(fault, group)

    def _happen_at_step(self, fault: Fault, group: unisono.Group, step: str, times: int) -> None:
        """Let it happen before the rank takes the step, once it has done so this often."""
        places: dict[str, tuple[Any, str]] = {
            "lend": (group.engine.lender, "lend"),
            "borrow": (group.engine.lender, "borrow"),
            "tell": (Board, "set_proposal"),
            "join": (survivors, "_go_on"),
        }
        place, name = places[step]
        do, taken = getattr(place, name), count()

        def happens(*arguments: Any) -> Any:
            if next(taken) == times:
                setattr(place, name, do)
                self._happen(fault, group)
            return do(*arguments)

        setattr(place, name, happens)

    def _mark(self, fault: Fault) -> int:
        """Tell the parent that it happens; the process to which it happens."""
        pid = os.getpid()
        if fault.how in HARMLESS:
            span: Any = unisono.init().world.span
            pid = sentinel_of(span.far)
        (self._folder / f"fault {self._scene.faults.index(fault)} {pid}").write_text(f"{time.monotonic()}")
        return pid

    def _happen(self, fault: Fault, group: unisono.Group) -> None:
        if fault in self._faults:
            self._faults.remove(fault)
        pid = self._mark(fault)
        match fault.how:
            case "end sentinels" | "lose sentinel":
                if fault.how == "lose sentinel":
                    patch.object(far, "start_again", side_effect=OSError).start()
                span: Any = group.world.span
                send_with_spare(span.far, signal.SIGKILL)
                if fault.how == "lose sentinel":
                    time.sleep(2 * group.engine.config.host_silence_s)  # until the other hosts know
            case "kill" | "end sentinel":
                os.kill(pid, signal.SIGKILL)
            case how if how in STOPPING:
                os.kill(pid, signal.SIGSTOP)
            case how if how in (*OF_HOSTS, *BRIEF):
                until((self._folder / f"begun {self._scene.faults.index(fault)}").exists)
            case how if how in _ENDS:
                _ENDS[how]()
                threading.Event().wait()  # until it has ended
            case "raise":
                raise RuntimeError("drawn by lot")
            case "return":
                raise _End
            case "no memory":
                raise unisono.OutOfMemory("drawn by lot")
            case "interrupt":
                raise KeyboardInterrupt
            case "abort":
                group.abort("drawn by lot")
            case "mismatch":
                unisono.all_reduce(torch.ones(3, dtype=torch.int32), "max", group)
            case "refuse":
                unisono.all_reduce(torch.ones(3), "no op", group)
