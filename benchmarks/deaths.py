"""A rank is killed while all others wait for it. When does each of them know? `python -m benchmarks.deaths`.

Four ranks, on our backend, on Gloo, and on Gloo with `UNISONO_WATCH=1`.
"""

import json
import os
import re
import signal
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer

import unisono

from .runs import GLOO, OURS, RANKS, TORCH, Cell, Output, Table, begin, hand_in, of_times
from .turns import Rendezvous

_HOW = """\
Four ranks, one host or two. All but rank 3 are in an all_reduce of 100 KB when it is killed by SIGKILL. Times of all
three survivors, from the kill until the call has raised an error; and, with unisono, until the survivors have made a
smaller group and a sum in it. Hosts are processes of this machine that share no memory and have connections over
loopback. unisono.watch() is for one host."""
_SIZE, _VICTIM, _COUNT = 4, 3, 25_000
_WATCHED = "Gloo, watched"
_BEFORE_S, _LIMIT_S = 0.1, 30.0
"""How long the others wait before the kill, and at most."""

Seen = tuple[float, float, bool]
"""When a rank had its error, when the sum in the smaller group, and whether the error names the victim."""


def _live(backend: str, folder: str, watched: bool) -> None:
    """One rank. The victim writes down when it is killed, the others what they see; then they end, as programs do."""
    rank = unisono.get_rank()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if watched:
        unisono.watch()
    meeting, limit = f"file://{folder}/torch", timedelta(seconds=_LIMIT_S)
    dist.init_process_group(backend, meeting, rank=rank, world_size=_SIZE, timeout=limit)
    ones = torch.ones(_COUNT)
    dist.all_reduce(ones)
    Rendezvous(Path(folder, "meet"), rank, _SIZE).barrier()
    if rank == _VICTIM:
        time.sleep(_BEFORE_S)
        Path(folder, "killed").write_text(f"{time.monotonic()}")
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(ones)
    except RuntimeError as error:
        heard = time.monotonic()
        if backend != "gloo":
            _go_on(dist.group.WORLD)
        seen: Seen = heard, time.monotonic(), bool(re.search(rf"\brank {_VICTIM}\b", str(error)))
        Path(folder, f"seen {rank}").write_text(json.dumps(seen))
    os._exit(1)


def _go_on(world: Any) -> None:
    smaller = world.group.shrink()
    mine = torch.tensor([2.0 ** unisono.get_rank()])
    unisono.all_reduce(mine, group=smaller)
    if mine.item() != 2.0**_SIZE - 1 - 2.0**_VICTIM:
        raise RuntimeError(f"the sum of the survivors is {mine.item()}")


def _trial(who: str, hosts: str) -> tuple[float, list[Seen]]:
    """When the victim was killed, and what each survivor has seen."""
    backend = "unisono" if who == OURS else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        args = backend, folder, who == _WATCHED
        ends = unisono.run(_live, args=args, hosts=hosts, timeout_s=2 * _LIMIT_S, return_exceptions=True)
        seen = [json.loads(path.read_text()) for path in Path(folder).glob("seen *")]
        if len(seen) < _SIZE - 1:
            raise RuntimeError(f"{who}, {hosts}: {len(seen)} ranks had an error. {ends}")
        return float(Path(folder, "killed").read_text()), seen


def bench_deaths(
    *,
    trials: Annotated[int, typer.Option(min=1, help="Of each library, on one host and on two.")] = 20,
    output: Output = None,
) -> None:
    """Kill a rank, and measure when the others have an error, and whether it names the rank."""
    run = begin("A rank is killed", _HOW, code=[*TORCH, *RANKS])
    times: dict[tuple[str, str], dict[str, list[float]]] = {}
    named: list[list[Cell]] = []
    for hosts, where in (("1x4", "one"), ("2x2", "two")):
        for who in (OURS, GLOO, *[_WATCHED] * (where == "one")):
            found = [(at, seen) for at, all_seen in (_trial(who, hosts) for _ in range(trials)) for seen in all_seen]
            times.setdefault((where, "error"), {})[who] = [heard - at for at, (heard, _, _) in found]
            if who == OURS:
                times[where, "sum in a smaller group"] = {OURS: [went_on - at for at, (_, went_on, _) in found]}
            named.append([where, who, len(found), sum(names for _, (_, _, names) in found)])
    times = dict(sorted(times.items(), key=lambda item: item[0][::-1]))
    run.tables = [
        of_times("times", ["hosts", "until"], times),
        Table("errors", ["hosts", "library", "errors", "that name the rank"], named),
    ]
    hand_in(run, output)


if __name__ == "__main__":
    typer.run(bench_deaths)
