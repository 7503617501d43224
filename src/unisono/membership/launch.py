"""Local worlds: run a function on several ranks of this host, from a script, a notebook or a test."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ..config import Config
from ..errors import ArgumentError, NotInitialized
from .cargo import pack
from .crew import Crew
from .output import Outlet
from .verdict import results

__all__ = ["World", "run", "world"]


def run(
    fn: Callable[..., Any],
    ranks: int = 4,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
) -> list[Any]:
    """Call `fn(*args, **kwargs)` on `ranks` new processes of this host; return their results in rank order.

    On every rank `unisono.init()` returns the group of all of them, and calls without a group use it. The function
    may be a lambda or a closure, from `__main__` or a notebook cell; results and arguments are copied.

    Raises RankFailed (which is also an instance of the rank's own error, where that is one of unisono's) as soon as
    a rank fails, and WaitTimeout, with the stacks of the ranks that are not ready, after timeout_s seconds.
    """
    with World(ranks, timeout_s=timeout_s) as alone:
        return alone.run(fn, *args, **dict(kwargs or {}))


def world(ranks: int = 4, *, timeout_s: float | None = None, config: Config | None = None) -> World:
    """Ranks that stay: `with unisono.world(4) as w: w.run(prepare); w.run(step)`. See World."""
    return World(ranks, timeout_s=timeout_s, config=config)


class World:
    """Ranks of this host that keep their processes, imports and group from one run to the next.

    They are forked at the first run. A run that fails, or closes their group, takes its ranks with it, and the next
    one starts on fresh ones.
    """

    def __init__(self, ranks: int = 4, *, timeout_s: float | None = None, config: Config | None = None) -> None:
        if not isinstance(ranks, int) or ranks < 1:
            raise ArgumentError(f"a world has a whole number of ranks, at least one, not {ranks!r}")
        if timeout_s is not None and timeout_s <= 0:
            raise ArgumentError(f"timeout_s={timeout_s} is no time: give seconds, or None to wait without end")
        self.size = ranks
        self._timeout_s, self._config = timeout_s, config
        self._owner = os.getpid()
        self._outlets = Outlet("stdout"), Outlet("stderr")
        self._crew: Crew | None = None
        self._closed = False
        self._one_run = threading.Lock()

    @property
    def pids(self) -> list[int]:
        """The processes of the ranks, in rank order; empty while there are none."""
        return list(self._crew.pids) if self._crew else []

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call `fn(*args, **kwargs)` on every rank; return the results in rank order. Raises as `run` does."""
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        if not callable(fn):
            raise ArgumentError(f"run() takes a function, not a {name}")
        for wrong, why in (
            (self._closed, "has been closed"),
            (os.getpid() != self._owner, f"belongs to process {self._owner}, from which this one was forked"),
        ):
            if wrong:
                raise NotInitialized(f"this world {why}: make a new one with unisono.world({self.size})")
        with self._one_run:
            try:
                cargo = pack((fn, args, kwargs))
            except Exception as error:
                raise ArgumentError(f"{name} and its arguments cannot be sent to the ranks: {error}") from error
            start = time.monotonic()
            try:
                if self._crew is None:
                    self._crew = Crew(self.size, self._config)
                deadline = None if self._timeout_s is None else start + self._timeout_s
                reports = self._crew.run(cargo, self._outlets, deadline)
                values = results(reports, f"run({name})", time.monotonic() - start)
            except BaseException:
                if self._crew is not None:
                    self._crew.kill()
                    self._crew = None
                raise
            if any(report.closed for report, _ in reports.values()):
                self._crew.close()
                self._crew = None
            return values

    def close(self) -> None:
        """End the ranks. Twice is fine."""
        if self._crew is not None and os.getpid() == self._owner:
            self._crew.close()
        self._crew = None
        self._closed = True

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
