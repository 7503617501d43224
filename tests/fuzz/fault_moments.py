"""How a fault of a scene happens on its rank: at its moment, in or beside a call, and told to the parent by a file."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import torch

import unisono
from tests.fuzz.fault_scene import (
    BRIEF,
    COLLECTIVES,
    DEADLY,
    HARMLESS,
    LATE_S,
    OF_HOSTS,
    STEPS,
    STOPPING,
    TOLD,
    Call,
    Fault,
    Scene,
)
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

_AT_ROW: dict[str, Any] = {
    "kill": "kill",
    "os_exit": "exit",
    "pause": "stop",
    "hold": "hold",
    "delay": "delay",
    "error": "delay",
}
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


class Moments:
    """The faults of one rank. left: those that have not happened. late_s: for how long it was late at a row."""

    def __init__(self, scene: Scene, folder: Path, rank: int) -> None:
        self._scene, self._folder, self._me = scene, folder, rank
        self.left = [fault for fault in scene.faults if fault.rank == rank]
        self._over, self._lock = False, threading.Lock()
        self.late_s: float | None = None

    def end(self) -> None:
        """Nothing happens from now on: the rank closes its group."""
        with self._lock:
            self._over = True

    def of_call(self, number: int) -> list[Fault]:
        """The faults in or beside a call."""
        return [fault for fault in self.left if fault.call == number and not (fault.in_recovery or fault.in_meeting)]

    def flag(self, words: str) -> Path:
        """A file by which ranks tell each other what they have come to."""
        return self._folder / f"{words} {self._me}"

    def until(self, words: str, ranks: int) -> None:
        """Wait until as many ranks have made the file of these words."""
        until(lambda: len(list(self._folder.glob(f"{words} *"))) >= ranks)

    def await_peer(self, fault: Fault) -> None:
        """Let the wait of another rank last until something has happened to it there."""
        words = "felt" if fault.how in TOLD else f"fault {self._scene.faults.index(fault)}"
        self.until(words, 1)

    def felt(self) -> None:
        """The rank has given up its group."""
        self.flag("felt").touch()

    def _abort(self, group: unisono.Group) -> None:
        group.abort("drawn by lot")
        self.felt()

    @contextmanager
    def suffer(self, fault: Fault, call: Call, group: unisono.Group) -> Iterator[None]:
        """Let the fault happen around what is within the block."""
        moment, _, when = fault.moment.partition(" ")
        if moment == "row" and call.name in COLLECTIVES:
            with self._at_row(fault, call, group, int(when)):
                yield
            return
        if moment == "awaited":
            self.until(f"waits {fault.call}", group.size - 1)
        if moment in ("before", "awaited"):
            self._happen(fault, group)
        elif moment == "waiting":
            signal.signal(signal.SIGUSR1, lambda *_: self._abort(group))
            once_waiting(partial(self._happen_later, fault, group))
        elif moment == "entered":
            entered = partial(group.engine.entered, group.rank)
            before = entered()
            once(lambda: entered() > before, partial(self._happen_later, fault, group))
        elif moment in ("within", "shrink"):
            threading.Thread(target=self._happen_later, args=(fault, group, float(when)), daemon=True).start()
        if moment in STEPS:
            places: dict[str, tuple[Any, str]] = {
                "lend": (group.engine.lender, "lend"),
                "borrow": (group.engine.lender, "borrow"),
                "tell": (Board, "set_proposal"),
                "join": (survivors, "_go_on"),
            }
            with self._at_step(fault, group, *places[moment], times=int(when or 0)):
                yield
        else:
            yield
        if moment == "after":
            self._happen(fault, group)

    @contextmanager
    def meet(self) -> Iterator[None]:
        """Let a fault happen before or after the step of the ranks' meeting that it names."""
        with ExitStack() as stack:
            for fault in self.left:
                if fault.in_meeting:
                    when, _, step = fault.moment.partition(" ")
                    stack.enter_context(self._at_step(fault, unisono.init(), *_MEETING[step], after=when == "after"))
            yield

    @contextmanager
    def _at_row(self, fault: Fault, call: Call, group: unisono.Group, row: int) -> Iterator[None]:
        self._mark(fault, group)
        self.left.remove(fault)
        began, fails = time.monotonic(), Mock(sleep=Mock(side_effect=ValueError("drawn by lot")))
        at, module = (call.name, 1, "row", row), sys.modules[chaos.__module__]
        try:
            with (
                patch.object(module, "time", fails if fault.how == "error" else time),
                chaos(at=at, group=group, duration_s=LATE_S, **{_AT_ROW[fault.how]: group.rank}),
            ):
                yield
        except unisono.ArgumentError:  # the program of this call has fewer rows
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.how in DEADLY:
            self._happen(fault, group)  # the call was over without it
        self.late_s = time.monotonic() - began

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
        pid = os.getpid()
        if fault.how in HARMLESS:
            span: Any = group.world.span
            pid = sentinel_of(span.far)
        (self._folder / f"fault {self._scene.faults.index(fault)} {pid}").write_text(f"{time.monotonic()}")
        return pid

    def _happen(self, fault: Fault, group: unisono.Group) -> None:
        if fault in self.left:
            self.left.remove(fault)
        pid = self._mark(fault, group)
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
                raise End
            case "no memory":
                raise unisono.OutOfMemory("drawn by lot")
            case "interrupt":
                raise KeyboardInterrupt
            case "time out":
                raise unisono.WaitTimeout("init()", 1.0, (self._scene.next_to(fault),), self._me)
            case "Ctrl-C":
                os.kill(pid, signal.SIGINT)
            case "abort":
                self._abort(group)
            case "abort by a handler":
                os.kill(pid, signal.SIGUSR1)
            case "dismissed":
                pass  # the others leave it out
            case "detour":
                unisono.barrier(group.world)
            case "late":
                self.until(f"timed out {fault.call}", group.size - 1)
            case "mismatch":
                unisono.all_reduce(torch.ones(3, dtype=torch.int32), "max", group)
            case "refuse":
                unisono.all_reduce(torch.ones(3), "no op", group)
