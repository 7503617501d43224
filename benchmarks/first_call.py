"""What the first group and the first call of a fresh process cost, beside Gloo.

    python -m benchmarks.first_call

Processes start, import torch, make a group and call all_reduce: two on one host, and on hosts in network namespaces of
this machine, if it has them. Contenders take turns.

A rank is `python first_call.py BACKEND HOSTS`. It reports that it is ready, and begins when all are. It imports only
torch before the clock starts, so this file imports the rest inside functions.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's __all__ omits it

GLOO, OURS, FIRST = "Gloo", "unisono", "unisono, nothing on disk"
"""FIRST finds no machine code on disk, and so compiles it."""

_HOW = """\
"all" is processor time of all threads of the rank that takes more: mostly rank 0, which has torch's store. "wall" is
the longest elapsed time of any rank. Both run from the moment at which all have imported torch to the result. If
nothing is on disk, one rank compiles, and the other waits for it. All ranks share this machine's processors. Hosts are
network namespaces; their ranks are at torch's store before the clock starts, as ranks of torchrun are."""

Turns = dict[str, list[dict[str, float]]]
"""By contender, the seconds of each turn: "all" and "wall"."""


def live(backend: str, hosts: int) -> None:
    """Make a group of all ranks and call all_reduce, as one rank."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, store = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), None
    if hosts > 1:
        store = TCPStore(*address, size, rank == 0)
    print("ready", flush=True)
    sys.stdin.readline()
    began, used = time.perf_counter(), time.process_time()
    store = store or TCPStore(*address, size, rank == 0)
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    vector = torch.full((2,), 1.0 + rank)
    distributed.all_reduce(vector)
    spent = {"all": time.process_time() - used, "wall": time.perf_counter() - began}
    if vector.tolist() != [size * (size + 1) / 2] * 2:
        raise RuntimeError(f"the sum of 1 to {size} is {vector.tolist()}")
    print(json.dumps(spent), flush=True)
    distributed.destroy_process_group()


def measure(backend: str, cache: str | None = None, spaces: Any = None) -> dict[str, float]:
    """The most seconds of any rank. cache: a folder for machine code. spaces: network namespaces; None: one host."""
    from tests.support.namespaces import PORT
    from tests.support.ports import free_port

    from unisono.ranks.rendezvous.identity import HOST_ID
    from unisono.schedule import Hosts

    hosts = Hosts.one(2) if spaces is None else spaces.hosts
    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(hosts.ranks)}
    if cache is not None:
        there["UNISONO_CACHE_DIR"] = cache
    if spaces is not None:
        there |= {"MASTER_ADDR": spaces.address(0), "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": "eth0"}
        there["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # torch warns that addresses have no names
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ranks: list[Any] = []  # processes with pipes
    for rank in range(hosts.ranks):
        host = hosts.host_of(rank)
        enter = [] if spaces is None else ["ip", "netns", "exec", spaces.names[host]]
        own = {"RANK": str(rank)} | ({} if spaces is None else {HOST_ID: str(host)})
        command = [*enter, sys.executable, __file__, backend, str(len(hosts.members))]
        pipe = subprocess.PIPE
        ranks.append(subprocess.Popen(command, env={**environment, **there, **own}, stdin=pipe, stdout=pipe, text=True))
    try:
        if any(process.stdout.readline() != "ready\n" for process in ranks):
            sys.exit("a rank has not come: standard error says why")
        for process in ranks:
            process.stdin.write("\n")
            process.stdin.flush()
        said: list[dict[str, float]] = [json.loads(one.communicate(timeout=300)[0]) for one in ranks]
    finally:
        for process in ranks:
            process.kill()
    return {part: max(one[part] for one in said) for part in ("all", "wall")}


def bench_first_call(*, turns: int = 6, first: int = 1, hosts: str = "1+1,2x2", output: Path | None = None) -> None:
    """Measure the first group and the first call of processes on this host, and on several, beside Gloo.

    turns: of each contender. first: turns that find nothing on disk. hosts: such as 2x2, in network namespaces; "": one
    host only.
    """
    from tests.support.namespaces import Namespaces, why_no_namespaces

    from benchmarks.runs import begin, hand_in, of_times
    from unisono.schedule import Hosts

    run, found = begin("The first call of a fresh process", _HOW), dict[str, Turns]()
    with ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(first)]
        fresh = [measure("unisono", folder) for folder in folders]
    found["one host"] = ({FIRST: fresh} if fresh else {}) | _take_turns(turns, None)
    reason = why_no_namespaces()
    for shape in hosts.split(",") if hosts and not reason else ():
        with closing(Namespaces(Hosts.parse(shape))) as spaces:
            found[shape] = _take_turns(turns, spaces)
    if hosts and reason:
        print(reason, file=sys.stderr)
    times = {
        (where, part): {who: [turn[part] for turn in each] for who, each in by_contender.items()}
        for where, by_contender in found.items()
        for part in ("all", "wall")
    }
    run.tables.append(of_times("parts", ["hosts", "part"], times))
    hand_in(run, output)


def _take_turns(turns: int, spaces: Any) -> Turns:
    found: Turns = {GLOO: [], OURS: []}
    for turn in range(turns + 1):  # the first turn brings files into memory
        for who, each in found.items():
            spent = measure(who.lower(), spaces=spaces)
            if turn:
                each.append(spent)
    return found


if __name__ == "__main__":
    if sys.argv[1:2] in (["gloo"], ["unisono"]):
        live(sys.argv[1], int(sys.argv[2]))
    else:
        import typer

        typer.run(bench_first_call)
