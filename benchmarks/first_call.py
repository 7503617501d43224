"""What the first group and the first call of a fresh process cost, beside Gloo, by part.

    python -m benchmarks.first_call

Processes start, import torch, make a group and call all_reduce: two on one host, and on hosts in network namespaces of
this machine, if it has them. Contenders take turns. Processor time of all threads counts from `import torch` on, of the
rank that takes more: mostly rank 0, which has torch's store.

A rank is `python first_call.py BACKEND HOSTS`. It reports that it is ready, and begins when all are. It imports only
torch before the clock starts, so this file imports the rest inside functions.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's __all__ omits it

GLOO, OURS, FIRST = "Gloo", "unisono", "unisono, nothing on disk"
"""FIRST finds no machine code on disk, and so compiles it."""

_BESIDE = "the sentinel itself", "wall"
"""What is no part of a rank's processor time."""
SHAPES = "1+1,2x2"
_LIMIT_S = 300

_HOW = """\
A figure is processor time of all threads of the rank that takes more, mostly rank 0, which has torch's store. If
nothing is on disk, one rank compiles, and the other waits for it. "wall" is the longest time of any rank, from the
moment at which all have imported torch to the result. All ranks share this machine's processors."""

_OVER_HOSTS = """\
Each host is a network namespace of this machine. Ranks are at torch's store before the clock starts, as ranks of
torchrun are. The sentinel is a process of its own, one for each host: its processor time is no part of "all"."""

Turns = dict[str, list[dict[str, float]]]
"""By contender, the seconds of each turn by part."""

PARTS = {
    "machine code": ("engine.machine_code:Unit.__init__", "engine.machine_code:Unit.address"),
    "memory": (
        "engine.memory.arena:Arena.create", "engine.memory.arena:Arena.attach",
        "engine.memory.arena:Arena.reserve_staging",
    ),
    "meeting": ("integrations.torch.join_group:enter_meeting", "integrations.torch.join_group:_meet"),
    "plan": ("calls.dispatch.step:make_plan",),
}  # fmt: skip
"""Part -> the functions that do it. A part within another part counts for itself only."""

OVER_HOSTS = {
    "sentinel, carrier": (
        "ranks.group.world_over_hosts:_Joining.far",
        "ranks.group.world_over_hosts:Connecting.carrier",
    )
}
"""The same, on several hosts."""


class Clock:
    """Seconds of processor time, of all threads of this process, by part."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._inner = [0.0]

    def run(self, part: str, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Call a function; what it takes counts for this part, less what parts within it take."""
        began = time.process_time()
        self._inner.append(0.0)
        try:
            return function(*args, **keywords)
        finally:
            took = time.process_time() - began
            self.spent[part] = self.spent.get(part, 0.0) + took - self._inner.pop()
            self._inner[-1] += took

    def watch(self, part: str, place: str) -> None:
        """Count each call of a function of unisono for a part. place: module:name or module:class.name."""
        module, _, name = place.partition(":")
        owner: Any = import_module(f"unisono.{module}")
        *classes, name = name.split(".")
        for each in classes:
            owner = getattr(owner, each, None)
        if owner is None:
            return  # another version
        bound = isinstance(vars(owner)[name], classmethod)
        function = getattr(owner, name)

        def counted(*args: Any, **keywords: Any) -> Any:
            return self.run(part, function, *args, **keywords)

        setattr(owner, name, staticmethod(counted) if bound else counted)


def imports(modules: Iterable[str]) -> None:
    """Import modules of unisono, as the first group does."""
    from unisono.base.python import no_collections

    with no_collections():
        for module in modules:
            import_module(f"unisono.{module}")


def sentinel_s() -> float:
    """The processor time of this host's sentinel, if this rank has started it."""
    from unisono.ranks.group.current import get_default

    group: Any = get_default()
    _, *others = group.span.here
    if group.rank in others:
        return 0.0
    while not (pid := group.span.far.sentinel_pid):  # it has not said yet that it serves
        time.sleep(0.001)
    started = resource.getrusage(resource.RUSAGE_CHILDREN)  # the process that has loaded it, and whose child it is
    nanoseconds = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return started.ru_utime + started.ru_stime + nanoseconds / 1e9


def live(backend: str, hosts: int) -> None:
    """Make a group of all ranks and call all_reduce."""
    clock, rank, size = Clock(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, store = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), None
    if hosts > 1:
        store = TCPStore(*address, size, rank == 0)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    if backend == "unisono":
        more = OVER_HOSTS if hosts > 1 else {}
        places = [(part, place) for part, of_part in (PARTS | more).items() for place in of_part]
        later = [place.partition(":")[0] for of_part in more.values() for place in of_part]
        clock.run("imports", imports, ["integrations.torch.process_group", *later])
        for part, place in places:
            clock.watch(part, place)
    if store is None:
        store = clock.run("torch's store", TCPStore, *address, size, rank == 0)
    clock.run("the rest of the group", distributed.init_process_group, backend, store=store, rank=rank, world_size=size)
    vector = torch.full((2,), 1.0 + rank)
    clock.run("the rest of the call", distributed.all_reduce, vector)
    wall_s = time.perf_counter() - began
    if vector.tolist() != [size * (size + 1) / 2] * 2:
        raise RuntimeError(f"the sum of 1 to {size} is {vector.tolist()}")
    more_s = {"the sentinel itself": sentinel_s()} if hosts > 1 and backend == "unisono" else {}
    print(json.dumps({**clock.spent, **more_s, "wall": wall_s}), flush=True)
    distributed.destroy_process_group()


def measure(backend: str, cache: str | None = None, spaces: Any = None) -> dict[str, float]:
    """Seconds by part of the rank that takes more; "wall" and "the sentinel itself": the most of any rank.

    cache: a folder for machine code. spaces: network namespaces, the hosts; None: one host.
    """
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
        said: list[dict[str, float]] = [json.loads(one.communicate(timeout=_LIMIT_S)[0]) for one in ranks]
    finally:
        for process in ranks:
            process.kill()
    most = {name: max(one[name] for one in said) for name in _BESIDE if name in said[0]}
    longest = max(said, key=processor_s)
    return longest | {"all": processor_s(longest)} | most


def processor_s(spent: Mapping[str, float]) -> float:
    """All parts of a rank together."""
    return sum(figure for name, figure in spent.items() if name not in _BESIDE)


def by_part(hosts: str, turns: Turns) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Hosts and part -> contender -> seconds of each turn."""
    parts = dict.fromkeys(part for of_turns in turns.values() for turn in of_turns for part in turn)
    return {
        (hosts, part): {who: [turn[part] for turn in each] for who, each in turns.items() if part in each[0]}
        for part in sorted(parts, key=["all", *_BESIDE].__contains__)
    }


def bench_first_call(*, turns: int = 6, first: int = 1, hosts: str = SHAPES, output: Path | None = None) -> None:
    """Measure the first group and the first call of processes on this host, and on several, beside Gloo.

    turns: of each contender. first: turns that find nothing on disk. hosts: such as 2x2, in network namespaces; "": one
    host only.
    """
    from tests.support.namespaces import Namespaces, why_no_namespaces

    from benchmarks.runs import begin, hand_in, of_times
    from unisono.schedule import Hosts

    run = begin("The first call of a fresh process", _HOW, _OVER_HOSTS)
    one_host: Turns = {GLOO: []}
    with ExitStack() as stack:
        for _ in range(first):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            one_host.setdefault(FIRST, []).append(measure("unisono", folder))
    found = by_part("one host", one_host | _take_turns(turns, None))
    reason = why_no_namespaces()
    for shape in hosts.split(",") if hosts and not reason else ():
        with closing(Namespaces(Hosts.parse(shape))) as spaces:
            found |= by_part(shape, _take_turns(turns, spaces))
    if hosts and reason:
        print(reason, file=sys.stderr)
    run.tables.append(of_times("parts", ["hosts", "part"], found))
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
