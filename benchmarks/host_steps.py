"""Training steps over several hosts, on our backend and on Gloo, on hosts in network namespaces of this machine.

    sudo python -m benchmarks.host_steps

Contenders take turns, each with a copy of the model and the same data, in the same processes; a step takes as long as
its slowest rank. Losses are held against those of the same training on one host, of a second run over hosts, and of
Gloo.
"""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from tests.support.namespaces import PORT, Namespaces, enter, why_no_namespaces

import unisono
from unisono.schedule import Hosts

from .runs import GLOO, HOSTS, OURS, Output, Run, Table, begin, hand_in, of_times
from .torch_backend.ranks import ALONE, KINDS, Groups, make_trainer, train_in_turns
from .turns import Times, slowest_rank

_HOW = """\
Hosts are network namespaces of this machine. A step takes as long as its slowest rank. Losses are compared with those
of the same training on one host, of a second run over hosts, and of Gloo."""

_CLOSE = 1e-4
"""How far the losses of two orders of summing may be apart, relatively; in some thirty steps they drift."""

Losses = Mapping[str, Sequence[float]]
"""Contender -> rank 0's loss in each step."""


@dataclass(frozen=True)
class HostSteps:
    """One kind of training at one rate: seconds per step, losses. alone: ours on one host. again: in a second run."""

    kind: str
    rate: str
    times: Times
    losses: Losses
    alone: Sequence[float]
    again: Sequence[float]


def _train(
    folder: str, spaces: Sequence[str], meeting: str, kinds: Sequence[str], turns: int, *, only: bool
) -> dict[str, tuple[Times, dict[str, list[float]]]]:
    """What a rank does. spaces: the namespace of each rank; none: all share this host. only: no contender but us."""
    if spaces:
        space = spaces[unisono.get_rank()]
        enter(space)
        os.environ |= {"UNISONO_HOST_ID": space, "GLOO_SOCKET_IFNAME": "eth0"}  # they are meant to be apart
    groups, found = Groups(folder, meeting), {}
    contenders = {OURS: groups.contenders[OURS]} if only else {**groups.contenders, ALONE: None}
    for kind in kinds:
        trainers = {name: make_trainer(kind, group) for name, group in contenders.items()}
        found[kind] = train_in_turns(trainers, groups.meet, turns)
    groups.meet.barrier()
    return found


def _run(spaces: Namespaces | None, ranks: int, kinds: Sequence[str], turns: int, *, only: bool) -> list[Any]:
    where, meeting = [], ""
    if spaces:
        where = [spaces.names[spaces.hosts.host_of(rank)] for rank in range(ranks)]
        meeting = f"tcp://{spaces.address(0)}:{PORT}"
    with tempfile.TemporaryDirectory() as folder, unisono.world(ranks, timeout_s=900) as world:
        return world.run(_train, folder, where, meeting, kinds, turns, only=only)


def losses_agree(one: Sequence[float], other: Sequence[float]) -> bool:
    """Are the losses of all steps as close as another order of summing lets them be?"""
    return all(abs(a - b) <= _CLOSE * max(abs(a), abs(b)) for a, b in zip(one, other, strict=True))


def fill(run: Run, hosts: str, found: Sequence[HostSteps]) -> None:
    """Add the tables of these trainings to a run."""
    times = {(hosts, "no limit" if each.rate == "none" else each.rate, each.kind): each.times for each in found}
    losses: list[list[str]] = []
    for key, each in zip(times, found, strict=True):
        exact = each.losses[OURS]
        last = [f"{of_steps[-1]:.7g}" for of_steps in (exact, each.losses[GLOO], each.alone)]
        again = "the same bits" if each.again == exact else "NOT THE SAME BITS"
        losses.append([*key, *last, again, *(_beside(exact, other) for other in (each.alone, each.losses[GLOO]))])
    keys, beside = ["hosts", "link", "training"], ["one host", "second run", "beside one host", "beside Gloo"]
    run.tables += [
        of_times("training steps", keys, times),
        Table("loss of the last step on rank 0", [*keys, OURS, GLOO, *beside], losses),
    ]


def _beside(one: Sequence[float], other: Sequence[float]) -> str:
    if list(one) == list(other):
        return "the same bits"
    return f"all within {_CLOSE:g}" if losses_agree(one, other) else "TOO FAR APART"


def bench_host_steps(
    *,
    shape: Annotated[str, typer.Option(help="Hosts, such as 2x2.")] = "2x2",
    rates: Annotated[str, typer.Option(help="Of each link, both ways; none: no limit.")] = "1gbit,none",
    kinds: Annotated[str, typer.Option(help=f"By number: {', '.join(KINDS)}.")] = "0,1,2",
    steps: Annotated[int, typer.Option(min=1, help="Training steps that are timed.")] = 20,
    output: Output = None,
) -> None:
    """Print times of steps and losses. Fails where losses are not what they must be."""
    if reason := why_no_namespaces():
        sys.exit(reason)
    hosts, trained = Hosts.parse(shape), [KINDS[int(number)] for number in kinds.split(",")]
    run = begin("Training over several hosts", _HOW, code=[*HOSTS, "src/unisono/integrations/torch"])
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of the ranks: it warns of addresses without names
    alone = _run(None, hosts.ranks, trained, steps, only=True)[0]
    found = []
    with closing(Namespaces(hosts)) as spaces:
        again = _run(spaces, hosts.ranks, trained, steps, only=True)[0]
        for rate in rates.split(","):
            spaces.rate(rate)
            ranks = _run(spaces, hosts.ranks, trained, steps, only=False)
            for kind in trained:
                times, losses = slowest_rank([rank[kind][0] for rank in ranks]), ranks[0][kind][1]
                found.append(HostSteps(kind, rate, times, losses, alone[kind][1][OURS], again[kind][1][OURS]))
                print(f"{kind}, {rate}", file=sys.stderr)
    fill(run, hosts.text, found)
    hand_in(run, output)
    if not all(
        each.again == each.losses[OURS] and losses_agree(each.losses[OURS], other)
        for each in found
        for other in (each.alone, each.losses[GLOO])
    ):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(bench_host_steps)
