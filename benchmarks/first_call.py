"""What the first group and the first call of a fresh process cost, beside Gloo, by part.

    python -m benchmarks.first_call

Processes start, import torch, make a group and call all_reduce: two on one host, and on hosts in network namespaces of
this machine, if it has them. Contenders take turns. Processor time of all threads counts from `import torch` on, of the
rank that takes more: mostly rank 0, which has torch's store.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

import typer
from tests.support.namespaces import PORT, Namespaces, why_no_namespaces
from tests.support.ports import free_port

from unisono.ranks.rendezvous.identity import HOST_ID
from unisono.schedule import Hosts

from .reports import GLOO, OURS, Output, describe, hand_in, head, in_ms, table

FIRST, OTHER = f"{OURS}, nothing on disk", "another installation"
"""Contenders: processes that find no machine code on disk, and so compile it; and `--beside`."""

ROWS = (
    "imports", "torch's store", "meeting", "sentinel, carrier", "memory", "machine code", "the rest of the group",
    "plan", "the rest of the call",
)  # fmt: skip
_BESIDE = "the sentinel itself", "wall"
"""What is no part of a rank's processor time."""
SHAPES = "1+1,2x2"
_RANK = Path(__file__).with_name("first_call_rank.py")
_LIMIT_S = 300

_HOW = """\
Two processes on one host, each with `import torch` behind it, make a group and call `all_reduce` of two numbers. A cell
is processor time of all threads in ms, of the rank that takes more, mostly rank 0, which has torch's store: the median,
and the least in brackets. Where nothing is on disk, one rank compiles, and the other waits for it. Both share the
processors; "wall" is the longer time of the two, from the moment at which both have imported torch to the result."""

_OVER_HOSTS = """\
Each host is a network namespace of this machine. Ranks are at torch's store before the clock starts, as ranks of
torchrun are. The sentinel is a process of its own, one for each host: its processor time is no part of "all". Ranks and
sentinels of all hosts share this machine's processors, so "wall" has the work of all of them in it."""

Turns = dict[str, list[dict[str, float]]]
"""By contender, the milliseconds of each turn by part."""


def measure(python: str, backend: str, cache: str | None = None, spaces: Namespaces | None = None) -> dict[str, float]:
    """Milliseconds by part of the rank that takes more; "wall" and "the sentinel itself": the most of any rank.

    python: the interpreter of the installation. cache: a folder for machine code. spaces: the hosts; None: one host.
    """
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
        command = [*enter, python, str(_RANK), backend, str(len(hosts.members))]
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
    longest = max(said, key=processor_ms)
    return longest | most


def processor_ms(spent: Mapping[str, float]) -> float:
    """All parts of a rank together."""
    return sum(figure for name, figure in spent.items() if name not in _BESIDE)


def parts(results: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    """A table of parts by contender; parts that none has are left out."""
    rows = []
    for part in (*ROWS, "all", *_BESIDE):
        cells = []
        for turns in results.values():
            if part == "all":
                figures = [*map(processor_ms, turns)]
            else:
                figures = [turn.get(part, 0.0) for turn in turns]
            cells.append(in_ms([figure / 1e3 for figure in figures]) if any(figures) else "")
        rows += [[part, *cells]] * any(cells)
    return table(["", *results], rows)


def first_call_markdown(machine: Mapping[str, str], one_host: Turns, over_hosts: Mapping[str, Turns]) -> list[str]:
    """The report. over_hosts: by shape."""
    lines = [*head("The first call of a fresh process", machine, _HOW), *parts(one_host)]
    if over_hosts:
        lines += ["", "## Over hosts", "", _OVER_HOSTS]
    for shape, turns in over_hosts.items():
        lines += ["", f"### {shape}", *parts(turns)]
    return lines


def bench_first_call(
    *,
    turns: Annotated[int, typer.Option(min=1, help="How often each contender has its turn.")] = 6,
    first: Annotated[int, typer.Option(min=0, help="How many turns find nothing on disk.")] = 1,
    beside: Annotated[str, typer.Option(help="The Python of another installation of unisono, such as an older.")] = "",
    named: Annotated[str, typer.Option(help="What the report calls it.")] = OTHER,
    hosts: Annotated[
        str, typer.Option(help="Hosts, such as 2x2, in network namespaces; none: one host only.")
    ] = SHAPES,
    output: Output = None,
) -> None:
    """Measure the first group and the first call of processes on this host, and on several, beside Gloo."""
    machine = describe()
    contenders = {GLOO: (sys.executable, "gloo")}
    if beside:
        contenders[named] = beside, "unisono"
    contenders[OURS] = sys.executable, "unisono"
    one_host: Turns = {GLOO: []}
    with ExitStack() as stack:
        for _ in range(first):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            one_host.setdefault(FIRST, []).append(measure(sys.executable, "unisono", folder))
    one_host |= _take_turns(contenders, turns, None)
    over_hosts: dict[str, Turns] = {}
    reason = why_no_namespaces()
    for shape in hosts.split(",") if hosts and not reason else ():
        with closing(Namespaces(Hosts.parse(shape))) as spaces:
            over_hosts[shape] = _take_turns(contenders, turns, spaces)
    if hosts and reason:
        print(reason, file=sys.stderr)
    hand_in(first_call_markdown(machine, one_host, over_hosts), output)


def _take_turns(contenders: Mapping[str, tuple[str, str]], turns: int, spaces: Namespaces | None) -> Turns:
    """contenders: interpreter and backend by name."""
    found: Turns = {who: [] for who in contenders}
    for turn in range(turns + 1):  # the first turn brings files into memory
        for who, (python, backend) in contenders.items():
            spent = measure(python, backend, spaces=spaces)
            if turn:
                found[who].append(spent)
    return found


if __name__ == "__main__":
    typer.run(bench_first_call)
