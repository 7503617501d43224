"""Training steps over several hosts, on our backend and on Gloo, on hosts in network namespaces of this machine.

    sudo python -m benchmarks.host_steps

Contenders take turns, each with a copy of the model and the same data, in the same processes; a step takes as long as
its slowest rank. Losses are compared with Gloo's.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated, Any

import typer
from tests.support.namespaces import PORT, Namespaces, enter, why_no_namespaces

import unisono
from unisono.schedule import Hosts

from .runs import GLOO, HOSTS, OURS, Cell, Output, Table, begin, hand_in, of_times
from .torch_backend.ranks import KINDS, Groups, measure_steps
from .turns import Times, slowest_rank

_HOW = "Hosts are network namespaces of this machine. A step takes as long as its slowest rank."

_CLOSE = 1e-4
"""How far the losses of two orders of summing may be apart, relatively; in some thirty steps they drift."""


def _train(folder: str, spaces: Sequence[str], meeting: str, kinds: Sequence[str], turns: int) -> dict[str, Any]:
    """What a rank does. spaces: the namespace of each rank."""
    space = spaces[unisono.get_rank()]
    enter(space)
    os.environ |= {"UNISONO_HOST_ID": space, "GLOO_SOCKET_IFNAME": "eth0"}  # they are meant to be apart
    groups = Groups(folder, meeting)
    found = {kind: measure_steps(groups, kind, turns) for kind in kinds}
    groups.meet.barrier()
    return found


def losses_agree(one: Sequence[float], other: Sequence[float]) -> bool:
    """Are the losses of all steps as close as another order of summing lets them be?"""
    return all(abs(a - b) <= _CLOSE * max(abs(a), abs(b)) for a, b in zip(one, other, strict=True))


def bench_host_steps(
    *,
    shape: Annotated[str, typer.Option(help="Hosts, such as 2x2.")] = "2x2",
    rates: Annotated[str, typer.Option(help="Of each link, both ways; none: no limit.")] = "1gbit,none",
    kinds: Annotated[str, typer.Option(help=f"By number: {', '.join(KINDS)}.")] = "0,1,2",
    steps: Annotated[int, typer.Option(min=1, help="Training steps that are timed.")] = 20,
    output: Output = None,
) -> None:
    """Measure steps. Fails where losses are not Gloo's."""
    if reason := why_no_namespaces():
        sys.exit(reason)
    hosts, trained = Hosts.parse(shape), [KINDS[int(number)] for number in kinds.split(",")]
    run = begin("Training over several hosts", _HOW, code=[*HOSTS, "src/unisono/integrations/torch"])
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of the ranks: it warns of addresses without names
    times, losses = dict[tuple[str, str, str], Times](), list[list[Cell]]()
    with closing(Namespaces(hosts)) as spaces:
        where = [spaces.names[hosts.host_of(rank)] for rank in range(hosts.ranks)]
        for rate in rates.split(","):
            spaces.rate(rate)
            with tempfile.TemporaryDirectory() as folder, unisono.world(hosts.ranks, timeout_s=900) as world:
                ranks = world.run(_train, folder, where, f"tcp://{spaces.address(0)}:{PORT}", trained, steps)
            for kind in trained:
                key = hosts.text, "no limit" if rate == "none" else rate, kind
                times[key] = slowest_rank([rank[kind][0] for rank in ranks])
                ours, gloo = (ranks[0][kind][1][who] for who in (OURS, GLOO))
                losses.append([*key, ours[-1], gloo[-1], "yes" if losses_agree(ours, gloo) else "no"])
                print(f"{kind}, {rate}", file=sys.stderr)
    keys = ["hosts", "link", "training"]
    titles = [*keys, OURS, GLOO, f"all losses within {_CLOSE:g}"]
    run.tables = [of_times("training steps", keys, times), Table("loss of the last step on rank 0", titles, losses)]
    hand_in(run, output)
    if any(row[-1] == "no" for row in losses):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(bench_host_steps)
