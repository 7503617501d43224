"""One rank of a scene: it makes the calls, suffers its faults, recovers from those of others, and tells what it saw."""

import gc
import json
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import unisono
from tests.fuzz import programs
from tests.fuzz.api import Native
from tests.fuzz.fault_moments import End, Moments
from tests.fuzz.fault_scene import COLLECTIVES, Call, Fault, Scene
from tests.fuzz.ranks import start
from tests.support.cluster import PORT, enter, join
from tests.support.lanes import without_limits
from tests.support.matrix_driver import CHANGED, IN_PLACE, wanted
from tests.support.waiting import once_waiting
from unisono.ranks.rendezvous.identity import HOST_ID

LIMIT_S = 1.0  # of the call to which a rank comes late
_AT_ONCE_S = 5.0  # how long a call of a group that is over may take: less than any that waits


def play(scene: Scene, folder: str, names: Sequence[str] = (), port: int = PORT) -> None:
    """The life of a rank. Files in the folder tell when its faults happened, and at last what it has seen.

    names: of the namespaces of the scene's hosts, if it has any. port: where ranks meet.
    """
    if unisono.init().engine.config.lanes > 1:  # by UNISONO_LANES
        without_limits()
    rank = _Rank(scene, Path(folder))
    try:
        if not (names or scene.meets or scene.launched) or rank.meet(names, port):
            rank.live()
    except End:
        return
    except unisono.LeftOut as error:
        rank.tell("left out", text=str(error))
    rank.end()


class _Rank:
    def __init__(self, scene: Scene, folder: Path) -> None:
        self._scene, self._folder = scene, folder
        self._me = unisono.get_rank()
        self._said: list[dict[str, Any]] = []
        self._moments = Moments(scene, folder, self._me)
        self._awaited = {fault.call for fault in scene.faults if fault.moment == "awaited" and fault.rank != self._me}
        self._subgroups: dict[tuple[int, ...], unisono.Group] = {}
        self._failed: set[tuple[int, ...]] = set()  # of these, since the last recovery

    def tell(self, what: str, **facts: Any) -> None:
        self._said.append({"what": what, "at": time.monotonic(), **facts})

    def end(self) -> None:
        """Close the group, and leave all that was seen where the parent finds it."""
        self._moments.end()
        unisono.shutdown()
        threads = {one.name for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon}
        self.tell("end", threads=sorted(threads - {"unisono stays for late ranks"}))
        path = self._folder / f"{self._me}.part"
        path.write_text(json.dumps(self._said))
        path.rename(self._folder / f"{self._me}.json")

    def meet(self, names: Sequence[str], port: int) -> bool:
        """Meet the others at the store of rank 0, as ranks that a launcher started. False: there is no group."""
        hosts, limit_s = self._scene.shape, unisono.init().timeout_s
        if names:
            enter(names[hosts.host_of(self._me)])
        elif hosts.spans:
            os.environ[HOST_ID] = f"{hosts.host_of(self._me)}"
        try:
            with self._moments.suffer("meeting", Call("barrier"), unisono.init()):
                group, store = join(self._me, hosts, port, min(limit_s, 100.0), "" if names else "127.0.0.1")
        except KeyboardInterrupt:
            self.tell("no group")
            self._wait_for_others("KeyboardInterrupt")
        except (unisono.PeerError, unisono.WaitTimeout, unisono.OutOfMemory) as error:
            self._heard(error, -1)
            self.tell("no group")
        else:
            group.timeout_s = limit_s
            vars(group)["store"] = store  # rank 0 serves it
            return True
        gc.collect()  # the store of rank 0 ends, unless it is still needed
        return False

    def live(self) -> None:
        """Make all calls; after a failure, make those again that the survivor that is furthest behind has to make."""
        for members in sorted({call.members for call in self._scene.calls if call.members}):
            if isinstance(group := unisono.new_group(members), unisono.Group):
                self._subgroups[members] = group
        self._moments.flag("ready").touch()
        self._moments.until("ready", 0 if self._scene.meets else self._scene.ranks)
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
            except (KeyboardInterrupt, ValueError) as failure:
                if f"{failure}" not in ("", "drawn by lot"):
                    raise
                self._moments.felt()
            else:
                return

    def _call(self, number: int) -> None:
        call = self._scene.calls[number]
        group = self._subgroups.get(call.members) if call.members else unisono.init()
        if group is None:
            return
        step = call.step(number)
        if isinstance(step, programs.Call):  # it takes long: not while faults are due
            wanted(replace(step.case, shared=False, async_op=False), group.size)
        limit_s, timed_out = group.timeout_s, self._moments.flag(f"timed out {number}")
        if number in self._awaited:
            self._awaited.remove(number)
            once_waiting(self._moments.flag(f"waits {number}").touch)
        try:
            with self._moments.suffer(number, call, group):
                for fault in self._scene.faults if not timed_out.exists() else ():
                    if fault.call == number and fault.rank != self._me:
                        self._leave_alone(fault, group)
                if wrong := start(step, Native(), group)():
                    self.tell("wrong value", call=number, members=group.world_ranks, text=wrong)
        except unisono.UnisonoError as error:
            keeps = self._scene.keep_inputs or self._scene.late or call.name not in IN_PLACE
            if keeps and CHANGED in getattr(error, "__notes__", ()):
                self.tell("input changed", call=number)
            self._failed.add(call.members)
            elsewhere = any(fault.how in ("detour", "dismissed") for fault in self._scene.faults)
            gave_up = isinstance(error, (unisono.PeerError, unisono.WaitTimeout)) and call.name in COLLECTIVES
            if gave_up and (group.broken or not elsewhere):
                self._expect_over(group, error, step)
            if isinstance(error, unisono.WaitTimeout):
                timed_out.touch()
            raise
        finally:
            group.timeout_s = limit_s

    def _leave_alone(self, fault: Fault, group: unisono.Group) -> None:
        """Come to a call as late as another rank's fault needs it, or not at all, or wait there for a short time."""
        if fault.moment in ("waiting", "entered"):
            self._moments.await_peer(fault)
        if fault.how == "dismissed":
            raise unisono.WaitTimeout("a call", 0.0, (fault.rank,), self._me)
        if fault.how == "late" and self._me == min({*group.world_ranks} - {fault.rank}):
            group.timeout_s = LIMIT_S  # the others hear that its time is up

    def _expect_over(self, group: unisono.Group, error: unisono.UnisonoError, step: programs.Step) -> None:
        """After an error of a collective all later calls raise the same, at once, and so does the same call."""
        calls = partial(unisono.barrier, group), partial(group.empty, 1), lambda: start(step, Native(), group)()
        for call in calls:
            began, again = time.monotonic(), None
            try:
                call()
            except unisono.UnisonoError as raised:
                again = type(raised)
            if again is not type(error) or time.monotonic() - began > _AT_ONCE_S:
                self.tell("not over", after=repr(error), again=f"{again}")

    def _heard(self, error: unisono.UnisonoError, step: int) -> None:
        """Note an error, its ranks as ranks of the world."""
        of_world = tuple(getattr(error, "world_ranks", ())) or range(self._scene.ranks)
        named = {what: [of_world[rank] for rank in getattr(error, what, ())] for what in ("failed", "missing", "odd")}
        kind, culprit, pid = type(error).__name__, of_world[getattr(error, "rank", 0)], getattr(error, "pid", 0)
        self.tell("error", kind=kind, step=step, culprit=culprit, pid=pid, text=str(error)[:1500], **named)
        self._wait_for_others(*(words for words in ("KeyboardInterrupt", "is too full") if words in str(error)))

    def _wait_for_others(self, *words: str) -> None:
        """Let all survivors hear of this before any of them goes on: then it is about an earlier call."""
        for word in words:
            self._moments.flag(word).touch()
            self._moments.until(word, self._scene.ranks - len(self._scene.dead))

    def _recover(self, error: unisono.PeerError | unisono.WaitTimeout, step: int) -> int:
        """Go on in a smaller group; the call from which all go on."""
        world = unisono.init()
        late = self._missing(error, world) if not self._scene.late else set()
        with self._moments.suffer("recovery", Call("barrier"), world):
            smaller = self._shrink(world, late)
        again = world.shrink()
        if not (smaller is again is unisono.init() and smaller.world_ranks[smaller.rank] == self._me):
            self.tell("wrong value", text=f"{smaller}, {again}, {unisono.init()}")
        if any(call.members for call in self._scene.calls):
            self._shrink_subgroups(smaller)
        if world.broken is None:
            self.tell("not over", after="a smaller group", again=f"{world}")
        first = torch.tensor([step])
        unisono.all_reduce(first, "min", smaller)
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

    def _shrink_subgroups(self, world: unisono.Group) -> None:
        """Shrink those in which a call has failed on any rank, and those that have lost one."""
        names = sorted({call.members for call in self._scene.calls if call.members})
        failed = torch.tensor([members in self._failed for members in names]).int()
        unisono.all_reduce(failed, "max", world)
        self._failed.clear()
        for members, has_failed in zip(names, failed.tolist(), strict=True):
            if (group := self._subgroups.get(members)) is not None:
                left_out = [rank for rank, there in enumerate(group.world_ranks) if there not in world.world_ranks]
                self._subgroups[members] = group.shrink(without=left_out) if left_out or has_failed else group

    @staticmethod
    def _missing(error: BaseException, group: unisono.Group) -> set[int]:
        if not isinstance(error, unisono.WaitTimeout):
            return set()
        of_world = error.world_ranks or group.world.world_ranks
        return {
            rank for rank, there in enumerate(group.world_ranks) if there in {of_world[one] for one in error.missing}
        }
