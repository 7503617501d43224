"""`run`, `world` and `World`: a function on several ranks of this host, from a script, a notebook or a test.

`run_script` runs a script in place of a function, with the environment that torchrun would give it.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from ...base.config import Config
from ...base.errors import ArgumentError, NotInitialized, RankFailed, WaitTimeout
from ...base.units import seconds
from ...schedule import Hosts
from .launch_messages import pack
from .output import RankOutput
from .processes import RankProcesses
from .reports import RunTime, outcomes, results

Args = ParamSpec("Args")
Result = TypeVar("Result")


def run(
    fn: Callable[..., Result],
    ranks: int | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
    *,
    hosts: Hosts | str | None = None,
    prefix: bool = False,
    return_exceptions: bool = False,
) -> list[Result] | list[Result | RankFailed]:
    """Call a function on several new processes of this host, the ranks; return their results in rank order.

    In the function `unisono.init()` returns the group of all ranks, which is also the default of all calls. The
    function may be a lambda, a closure, or from `__main__` or a notebook. Arguments and results are copied.

    Args:
        fn: The function.
        ranks: The number of ranks. None: as many as `hosts` has, or 4.
        args, kwargs: Its arguments, the same on every rank.
        timeout_s: Seconds that the function may take, counted from when all ranks have begun it. None: no limit.
        hosts: Hosts to simulate: `2x2` (2 hosts of 2 ranks), `3+1` or `2x2:round_robin`. Ranks of different hosts
            share no memory.
        prefix: Print `[rank 2]` before each line that rank 2 prints.
        return_exceptions: Let the other ranks finish if one fails, and return its RankFailed as its result.

    Raises:
        RankFailed: A rank failed. The error is also an instance of the rank's own error class, if that is unisono's.
        WaitTimeout: Ranks did not return in time, or did not begin the function within five minutes. The error has
            their stacks.
    """
    if not isinstance(args, Sequence) or isinstance(args, str):
        raise ArgumentError(f"args: got {type(args).__name__}, expected a tuple of arguments, such as (10,)")
    if not isinstance(kwargs, (Mapping, type(None))):
        raise ArgumentError(f"kwargs: got {type(kwargs).__name__}, expected a dict of arguments by name")
    options: dict[str, Any] = {"prefix": prefix, "return_exceptions": return_exceptions}
    with World(ranks, timeout_s=timeout_s, hosts=hosts, **options) as alone:
        return alone.run(fn, *args, **dict(kwargs or {}))


class World:
    """Ranks of this host that keep their processes, imports and group from one run to the next.

    The ranks are forked at the first run. If a rank fails, or a run closes or breaks the group, all ranks end, and the
    next run starts new ones.

    Args:
        ranks, hosts, prefix, return_exceptions: As in `run`.
        timeout_s: Seconds that each run may take. None: no limit. It may be changed between runs.
        config: The settings of the ranks. None: from the environment.

    Example::

        with unisono.world(4) as w:
            w.run(prepare)
            w.run(step)
    """

    def __init__(
        self,
        ranks: int | None = None,
        *,
        hosts: Hosts | str | None = None,
        timeout_s: float | None = None,
        config: Config | None = None,
        prefix: bool = False,
        return_exceptions: bool = False,
    ) -> None:
        if ranks is not None and (type(ranks) is not int or ranks < 1):
            raise ArgumentError(f"ranks: got {ranks!r}, expected a whole number, at least 1")
        if hosts is None:
            hosts = Hosts.one(4 if ranks is None else ranks)
        self._hosts = hosts if isinstance(hosts, Hosts) else Hosts.parse(hosts)
        if ranks not in (None, self._hosts.ranks):
            raise ArgumentError(
                f"ranks: got {ranks}, but hosts {self._hosts.text} have {self._hosts.ranks}. Leave out ranks."
            )
        self.size, self.timeout_s = self._hosts.ranks, timeout_s
        self._config, self._return_exceptions = config, return_exceptions
        self._owner = os.getpid()
        same = [(RankOutput("stdout"), RankOutput("stderr"))] * self.size
        apart = [f"[rank {rank}] " for rank in range(self.size)]
        self._outputs = [(RankOutput("stdout", who), RankOutput("stderr", who)) for who in apart] if prefix else same
        self._processes: RankProcesses | None = None
        self._closed = False
        self._one_run = threading.Lock()

    @property
    def timeout_s(self) -> float | None:
        """Seconds that each run may take, or None for no limit."""
        return self._timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float | None) -> None:
        self._timeout_s = None if timeout_s is None else seconds(timeout_s, positive=True)

    @property
    def pids(self) -> list[int]:
        """The process ids of the ranks, in rank order; empty while there are no ranks."""
        return list(self._processes.pids) if self._processes else []

    @property
    def state(self) -> str:
        """`new` (no ranks yet, or none after a failure), `idle`, `running` or `closed`."""
        if self._closed:
            return "closed"
        if self._one_run.locked():
            return "running"
        return "idle" if self._processes else "new"

    def run(self, fn: Callable[Args, Result], /, *args: Args.args, **kwargs: Args.kwargs) -> list[Result]:
        """Call `fn(*args, **kwargs)` on every rank; return the results in rank order. Errors are those of `run`."""
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        if not callable(fn):
            raise ArgumentError(f"fn: got {name}, expected a function")
        for wrong, why in (
            (self._closed, "has been closed"),
            (os.getpid() != self._owner, f"belongs to process {self._owner}, from which this one was forked"),
        ):
            if wrong:
                raise NotInitialized(f"this world {why}. Make a new one with unisono.world({self.size}).")
        with self._one_run:
            try:
                payload = pack((fn, args, kwargs))
            except Exception as error:
                raise ArgumentError(
                    f"cannot send {name} and its arguments to the ranks: {error}. Pass functions and data that "
                    "cloudpickle can pickle."
                ) from error
            start = time.monotonic()
            try:
                if self._processes is None:
                    self._processes = RankProcesses(self._hosts, self._config)
                limit_s = math.inf if self.timeout_s is None else self.timeout_s
                reports = self._processes.run(payload, self._outputs, limit_s, survive=self._return_exceptions)
                took = RunTime(f"run({name})", time.monotonic() - start, self.timeout_s)
                values = outcomes(reports, took) if self._return_exceptions else results(reports, took)
            except BaseException as error:
                if self._processes is not None:
                    self._processes.kill()
                    self._processes = None
                if isinstance(error, RankFailed | WaitTimeout):
                    raise error.with_traceback(None)  # noqa: B904  frames of this room say nothing about the function
                raise
            if any(report.closed or report.kind != "returned" for report in reports):
                self._processes.close()
                self._processes = None
            return values

    def close(self) -> None:
        """End the ranks, and print what they have printed since the last run. Idempotent."""
        if self._processes is not None and os.getpid() == self._owner:
            self._processes.close()
            for output in {output for pair in self._outputs for output in pair}:
                output.finish()
        self._processes = None
        self._closed = True

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        pids = f", pids {' '.join(map(str, self.pids))}" if self.pids else ""
        return f"World({self.size} ranks, {self.state}{pids})"


world = World


def run_script(
    script: str,
    arguments: Sequence[str] = (),
    ranks: int | None = None,
    *,
    hosts: str | None = None,
    timeout_s: float | None = None,
    prefix: bool = True,
    return_exceptions: bool = False,
) -> Sequence[RankFailed | None]:
    """Run a script as `__main__` on `ranks` (4) new processes of this host.

    unisono.init() returns the group of all ranks. RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT are set as torchrun sets them, so that dist.init_process_group() works, too. Standard input is empty.
    Returns None for each rank that ended well. Raises as `run` does, and ArgumentError if there is no such file.

    hosts, timeout_s, prefix and return_exceptions: as in `run`.
    """
    if not Path(script).is_file():
        raise ArgumentError(f"script: got {script}, which is not a file. Give the path of a Python script.")
    options: dict[str, Any] = {"hosts": hosts, "prefix": prefix, "return_exceptions": return_exceptions}
    with socket.socket() as reserved:
        # While this socket is bound, the system gives its port to no process that asks for any free one. The script's
        # rank 0 asks for this one, with SO_REUSEADDR as torch's stores do, and gets it.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        what = script, list(arguments), reserved.getsockname()[1]
        return run(_as_main, ranks, what, timeout_s=timeout_s, **options)


def _as_main(script: str, arguments: list[str], port: int) -> None:
    from ..group.initialize import init

    group = init()
    os.environ.update(
        RANK=str(group.rank),
        LOCAL_RANK=str(group.hosts.seat(group.rank)),
        WORLD_SIZE=str(group.size),
        LOCAL_WORLD_SIZE=str(len(group.hosts.beside(group.rank))),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    sys.argv[:] = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    main = ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main
    try:
        exec(compile(Path(script).read_bytes(), script, "exec"), vars(main))  # noqa: S102  the user's own script
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
