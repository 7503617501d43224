"""Calls of torch.distributed and training steps, on our backend and on Gloo: `python -m benchmarks.torch_backend`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import typer

import unisono
from unisono.base.units import format_bytes, format_seconds, parse_bytes

from ..reports import GLOO, OURS, Output, describe, hand_in, head, in_ms, table
from ..turns import Times, slowest_rank
from .calls import CALLS, measure_barrier, measure_calls
from .steps import ALONE, KINDS, measure_steps

_HOW = """\
Two processes on one host, float32. A time is that of one call out of a batch, back to back, of the slower rank; a size
counts the larger tensor of a rank. Both backends have their process groups in the same two processes and take turns.
Every result is compared with Gloo's, bit by bit. Ratios above 1 say how many times as long Gloo takes."""

_STEPS = """\
A small transformer; then 16 linear layers of 512 in buckets of 4 MiB, for which "without communication" is
DistributedDataParallel with a hook that does nothing."""


@dataclass(frozen=True)
class Called:
    """One call with one size (None: it has none). same: both have written the same bits."""

    name: str
    nbytes: int | None
    times: Times
    same: bool


@dataclass(frozen=True)
class Trained:
    """One kind of training: seconds per step, and rank 0's losses, by contender. same: all ranks' losses were equal."""

    kind: str
    times: Times
    losses: Mapping[str, Sequence[float]]
    same: bool


def torch_markdown(
    machine: Mapping[str, str], sizes: Sequence[int], calls: Sequence[Called], steps: Sequence[Trained]
) -> list[str]:
    """The whole report."""
    lines = head("torch.distributed: our backend beside Gloo", machine, _HOW)
    found = {(call.name, call.nbytes): call for call in calls}
    for title, figure in (("Medians", median), ("Least times", min)):
        rows = []
        for name in dict.fromkeys(call.name for call in calls):
            mine = [found.get((name, nbytes)) or found.get((name, None)) for nbytes in sizes]
            cells = [_cell(*(figure(call.times[who]) * 1e6 for who in (OURS, GLOO))) if call else "" for call in mine]
            rows.append([f"`{name}`", *cells])
        lines += ["", f"## {title}, in µs: ours / Gloo", *table(["call", *map(format_bytes, sizes)], rows)]
    lines += ["", f"Calls whose results differ from Gloo's: {sum(not call.same for call in calls)} of {len(calls)}."]
    lines += ["", "## Training steps, in ms: median (least)", "", _STEPS]
    titles = ["", OURS, GLOO, ALONE, "steps", "loss of the last step: ours, Gloo's", "all losses equal"]
    return lines + table(titles, map(_trained, steps))


def _trained(one: Trained) -> list[str]:
    last = ", ".join(repr(one.losses[who][-1]) for who in (OURS, GLOO))
    same = "yes, to the last bit" if one.same else "no"
    return [f"`{one.kind}`", *map(in_ms, one.times.values()), str(len(one.losses[OURS])), last, same]


def _cell(ours: float, theirs: float) -> str:
    return f"{ours:.3g} / {theirs:.3g} ({theirs / ours:.1f}×)"


def bench_torch(
    *,
    sizes: Annotated[str, typer.Option(help="Bytes of a rank's larger tensor, multiples of 8.")] = "8,64KiB,4MiB",
    turns: Annotated[int, typer.Option(min=1, help="How often each contender has its turn.")] = 9,
    steps: Annotated[int, typer.Option(min=1, help="Training steps that are timed.")] = 30,
    output: Output = None,
) -> None:
    """Measure torch.distributed on two ranks with our backend beside Gloo: every call, then training."""
    counts = [parse_bytes(size) for size in sizes.split(",")]
    machine = describe()
    with tempfile.TemporaryDirectory() as folder, unisono.world(2, timeout_s=600) as world:
        machine["mode"] = f"a barrier takes {format_seconds(max(world.run(measure_barrier, folder)))}"
        calls = []
        for name in CALLS:
            for nbytes in counts if name != "barrier" else counts[:1]:
                seen = world.run(measure_calls, folder, name, nbytes, turns)
                times = slowest_rank([times for times, _ in seen])
                calls.append(Called(name, nbytes if name != "barrier" else None, times, all(same for _, same in seen)))
        training = []
        for kind in KINDS:
            trained = world.run(measure_steps, folder, kind, steps)
            same = all(losses[OURS] == losses[GLOO] for _, losses in trained)
            training.append(Trained(kind, slowest_rank([times for times, _ in trained]), trained[0][1], same))
    hand_in(torch_markdown(machine, counts, calls, training), output)
    if not (all(call.same for call in calls) and all(trained.same for trained in training)):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(bench_torch)
