"""A Python script on several ranks of this host, with the environment that torchrun would give it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ...base.errors import ArgumentError, RankFailed
from .worlds import run


def run_script(
    script: str,
    arguments: Sequence[str] = (),
    ranks: int | None = None,
    *,
    hosts: str | None = None,
    timeout_s: float | None = None,
    prefix: bool = True,
    return_exceptions: bool = False,
    restarts: int = 0,
) -> Sequence[RankFailed | None]:
    """Run a script as `__main__` on `ranks` (4) new processes of this host.

    unisono.init() returns the group of all ranks. RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT are set as torchrun sets them, so that dist.init_process_group() works, too. Standard input is empty.
    Returns None for each rank that ended well. Raises as `run` does, and ArgumentError if there is no such file.

    hosts, timeout_s, prefix, return_exceptions and restarts: as in `run`.
    """
    if not Path(script).is_file():
        raise ArgumentError(f"{script} is not a file: give the path of a Python script")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    what = script, list(arguments), port, hosts
    options: dict[str, Any] = {"hosts": hosts, "prefix": prefix, "return_exceptions": return_exceptions}
    return run(_as_main, ranks, what, timeout_s=timeout_s, restarts=restarts, **options)


def _as_main(script: str, arguments: list[str], port: int, hosts: str | None) -> None:
    from ...schedule import Hosts
    from ..group.initialize import init

    group = init()
    map_of_hosts = Hosts.parse(hosts) if hosts else Hosts.one(group.size)
    os.environ.update(
        RANK=str(group.rank),
        LOCAL_RANK=str(map_of_hosts.seat(group.rank)),
        WORLD_SIZE=str(group.size),
        LOCAL_WORLD_SIZE=str(len(map_of_hosts.beside(group.rank))),
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
