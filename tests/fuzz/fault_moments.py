"""How a fault of a scene happens on its rank: at its moment, in or beside a call, and told to the parent by a file."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import torch

import unisono
from tests.fuzz import fault_scene as scenes
from tests.fuzz.fault_scene import Call, Fault, Scene
from tests.support.fake_hosts import send_with_spare, sentinel_of
from tests.support.waiting import once, once_waiting, until
from unisono.engine.memory.arena import Arena
from unisono.engine.memory.board import Board
from unisono.hosts import far
from unisono.hosts.carriers.ucx import UcxCarrier
from unisono.hosts.sentinel.start import Sentinel
from unisono.ranks.group import survivors
from unisono.ranks.rendezvous.meeting import Meeting
from unisono.tools.testing import chaos

_AT_ROW: dict[str, Any] = {"os_exit": "exit", "pause": "stop", "error": "delay"}
"""What can happen at a row -> the name that `chaos` has for it, if it has another one."""

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

_MEETING: dict[str, tuple[Any, str]] = {
    "come": (Meeting, "_come"),
    "place": (Meeting, "_place"),
    "hand out": (Meeting, "_hand_out"),
    "follow": (Meeting, "_follow"),
    "attach": (Arena, "attach"),
    "meet": (Meeting, "hold"),
    "listen": (Sentinel, "listen"),
    "sentinel": (Sentinel, "serve"),
    "connect": (UcxCarrier, "__init__"),
}
"""What a rank does to meet the others: it comes; rank 0 says which ranks share a host; the first rank of a host hands
out the memory, and the others follow it and attach the memory. Then the rank has met them. Over hosts, the first rank
of each starts its sentinel, and all connect.
"""


class End(BaseException):
    """Ends the rank's function well, before its program has ended."""


_RAISED: dict[str, BaseException] = {
    "raise": RuntimeError("drawn by lot"),
    "return": End(),
    "no memory": unisono.OutOfMemory("drawn by lot"),
    "interrupt": KeyboardInterrupt(),
}


class Moments:
    """The faults of one rank. left: those that have not happened."""

    def __init__(self, scene: Scene, folder: Path, rank: int) -> None:
        self._scene, self._folder, self._me = scene, folder, rank
        self.left = [fault for fault in scene.faults if fault.rank == rank]
        self._over, self._lock = False, threading.Lock()

    def end(self) -> None:
        """Nothing happens from now on: the rank closes its group."""
        with self._lock:
            self._over = True

    def flag(self, words: str) -> Path:
        """A file by which ranks tell each other what they have come to."""
        return self._folder / f"{words} {self._me}"

    def until(self, words: str, ranks: int) -> None:
        until(lambda: len(list(self._folder.glob(f"{words} *"))) >= ranks)

    def await_peer(self, fault: Fault) -> None:
        """Let the wait of another rank last until something has happened to it there."""
        self.until("felt" if fault.how in scenes.TOLD else f"fault {self._scene.faults.index(fault)}", 1)

    def felt(self) -> None:
        self.flag("felt").touch()

    def _abort(self, group: unisono.Group) -> None:
        group.abort("drawn by lot")
        self.felt()

    @contextmanager
    def suffer(self, where: int | str, call: Call, group: unisono.Group) -> Iterator[None]:
        """Let the faults happen around what is within the block: the call of this number, "meeting" or "recovery"."""
        with ExitStack() as stack:
            for fault in [fault for fault in self.left if fault.where == where]:
                stack.enter_context(self._suffer(fault, call, group))
            yield

    @contextmanager
    def _suffer(self, fault: Fault, call: Call, group: unisono.Group) -> Iterator[None]:
        if fault.where == "recovery":
            self.left.remove(fault)
        moment, _, detail = fault.moment.partition(" ")
        around: AbstractContextManager[None] = nullcontext()
        match moment:
            case "row" if call.name in scenes.COLLECTIVES:
                around = self._at_row(fault, call, group, int(detail))
            case "awaited":
                self.until(f"waits {fault.call}", group.size - 1)
                self._happen(fault, group)
            case "before" if not detail:
                self._happen(fault, group)
            case "before" | "after" if detail:  # a step of the meeting
                around = self._at_step(fault, group, *_MEETING[detail], after=moment == "after")
            case "waiting":
                signal.signal(signal.SIGUSR1, lambda *_: self._abort(group))
                once_waiting(partial(self._happen_later, fault, group))
            case "entered":
                entered = partial(group.engine.entered, group.rank)
                before = entered()
                once(lambda: entered() > before, partial(self._happen_later, fault, group))
            case "within" | "shrink":
                threading.Thread(target=self._happen_later, args=(fault, group, float(detail)), daemon=True).start()
            case "lend" | "borrow":
                around = self._at_step(fault, group, group.engine.lender, moment)
            case "tell":
                around = self._at_step(fault, group, Board, "set_proposal", times=int(detail))
            case "join":
                around = self._at_step(fault, group, survivors, "_go_on")
        with around:
            yield
        if fault.moment == "after":
            self._happen(fault, group)

    @contextmanager
    def _at_row(self, fault: Fault, call: Call, group: unisono.Group, row: int) -> Iterator[None]:
        self._mark(fault, group)
        self.left.remove(fault)
        began, fails = time.monotonic(), Mock(sleep=Mock(side_effect=ValueError("drawn by lot")))
        at, module = (call.name, 1, "row", row), sys.modules[chaos.__module__]
        try:
            with (
                patch.object(module, "time", fails if fault.how == "error" else time),
                chaos(at=at, group=group, duration_s=scenes.LATE_S, **{_AT_ROW.get(fault.how, fault.how): group.rank}),
            ):
                yield
        except unisono.ArgumentError:  # the program of this call has fewer rows
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.how in scenes.DEADLY:
            self._happen(fault, group)  # the call was over without it
        assert time.monotonic() - began >= scenes.LATE_S, fault

    def _happen_later(self, fault: Fault, group: unisono.Group, delay_s: float = 0.0) -> None:
        time.sleep(delay_s)
        with self._lock:
            if not self._over:
                self._happen(fault, group)

    @contextmanager
    def _at_step(
        self, fault: Fault, group: unisono.Group, place: Any, name: str, *, times: int = 0, after: bool = False
    ) -> Iterator[None]:
        """Let it happen before or after the rank takes the step, once it has done so this often."""
        do, taken = getattr(place, name), count()

        def happens(*arguments: Any, **options: Any) -> Any:
            is_now = next(taken) == times
            if is_now and not after:
                self._happen(fault, group)
            result = do(*arguments, **options)
            if is_now and after:
                self._happen(fault, group)
            return result

        with patch.object(place, name, happens):
            yield

    def _mark(self, fault: Fault, group: unisono.Group) -> int:
        """Tell the parent that it happens; the process to which it happens."""
        span: Any = group.world.span
        pid = sentinel_of(span.far) if fault.how in scenes.HARMLESS else os.getpid()
        (self._folder / f"fault {self._scene.faults.index(fault)} {pid}").write_text(f"{time.monotonic()}")
        return pid

    def _happen(self, fault: Fault, group: unisono.Group) -> None:
        if fault in self.left:
            self.left.remove(fault)
        pid, begun = self._mark(fault, group), self._folder / f"begun {self._scene.faults.index(fault)}"
        span: Any = group.world.span
        if fault.how in _RAISED:
            raise _RAISED[fault.how]
        if fault.how == "time out":
            raise unisono.WaitTimeout("init()", 1.0, (self._scene.next_to(fault),), self._me)
        kinds: dict[str, Callable[[], object]] = {
            **_ENDS,
            **dict.fromkeys(("kill", "end sentinel"), lambda: os.kill(pid, signal.SIGKILL)),
            **dict.fromkeys(scenes.STOPPING, lambda: os.kill(pid, signal.SIGSTOP)),
            **dict.fromkeys((*scenes.OF_HOSTS, *scenes.BRIEF), lambda: until(begun.exists)),
            "end sentinels": lambda: send_with_spare(span.far, signal.SIGKILL),
            "lose sentinel": lambda: self._lose(span, group.engine.config.host_silence_s),
            "Ctrl-C": lambda: os.kill(pid, signal.SIGINT),
            "abort": lambda: self._abort(group),
            "abort by a handler": lambda: os.kill(pid, signal.SIGUSR1),
            "dismissed": lambda: None,  # the others leave it out
            "detour": lambda: unisono.barrier(group.world),
            "late": lambda: self.until(f"timed out {fault.call}", group.size - 1),
            "mismatch": lambda: unisono.all_reduce(torch.ones(3, dtype=torch.int32), "max", group),
            "refuse": lambda: unisono.all_reduce(torch.ones(3), "no op", group),
        }
        kinds[fault.how]()
        if fault.how in scenes.DEADLY:
            threading.Event().wait()  # until it has ended

    @staticmethod
    def _lose(span: Any, silence_s: float) -> None:
        patch.object(far, "start_again", side_effect=OSError).start()
        send_with_spare(span.far, signal.SIGKILL)
        time.sleep(2 * silence_s)  # until the other hosts know
