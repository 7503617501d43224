"""Calls of torch.distributed and training steps, on our backend and on Gloo: `python -m benchmarks.torch_backend`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from unisono.base.units import format_bytes, format_seconds, parse_bytes

from ..reports import GLOO, OURS, Output, describe, hand_in, head, in_ms, ours_beside_gloo, table
from ..turns import Times, slowest_rank
from .ranks import ALONE, CALLS, KINDS, measure_calls, measure_steps, two_backends

_HOW = """\
Two processes on one host, float32. A time is that of one call out of a batch, back to back, of the slower rank; a size
counts the larger tensor of a rank. Both backends have their process groups in the same two processes and take turns.
Every result is compared with Gloo's, bit by bit. Ratios above 1 say how many times as long Gloo takes."""

_STEPS = """\
A small transformer; then 16 linear layers of 512 in buckets of 4 MiB, for which "without communication" is
DistributedDataParallel with a hook that does nothing."""


Calls = Mapping[tuple[str, int], Times]
"""By name and bytes."""


@dataclass(frozen=True)
class Trained:
    """One kind of training: seconds per step, and rank 0's losses, by contender. same: all ranks' losses were equal."""

    kind: str
    times: Times
    losses: Mapping[str, Sequence[float]]
    same: bool


def torch_markdown(
    machine: Mapping[str, str], sizes: Sequence[int], calls: Calls, same: Sequence[bool], steps: Sequence[Trained]
) -> list[str]:
    """The report. same: of each call that was measured, have both written the same bits?"""
    lines = head("torch.distributed: our backend beside Gloo", machine, _HOW)
    rows = {f"`{name}`": [calls.get((name, nbytes)) for nbytes in sizes] for name, _ in calls}
    lines += ours_beside_gloo(["call", *map(format_bytes, sizes)], rows)
    lines += ["", f"Calls whose results differ from Gloo's: {same.count(False)} of {len(same)}."]
    lines += ["", "## Training steps, in ms: median (least)", "", _STEPS]
    titles = ["", OURS, GLOO, ALONE, "steps", "loss of the last step: ours, Gloo's", "all losses equal"]
    return lines + table(titles, map(_trained, steps))


def _trained(one: Trained) -> list[str]:
    last = ", ".join(repr(one.losses[who][-1]) for who in (OURS, GLOO))
    same = "yes, to the last bit" if one.same else "no"
    return [f"`{one.kind}`", *map(in_ms, one.times.values()), str(len(one.losses[OURS])), last, same]


def bench_torch(
    *,
    sizes: Annotated[str, typer.Option(help="Bytes of a rank's larger tensor, multiples of 8.")] = "8,64KiB,4MiB",
    turns: Annotated[int, typer.Option(min=1, help="How often each contender has its turn.")] = 9,
    steps: Annotated[int, typer.Option(min=1, help="Training steps that are timed.")] = 30,
    output: Output = None,
) -> None:
    """Measure torch.distributed on two ranks with our backend beside Gloo: every call, then training."""
    counts, machine = list(map(parse_bytes, sizes.split(","))), describe()
    calls, same, training = dict[tuple[str, int], Times](), list[bool](), list[Trained]()
    with two_backends(2) as run:
        machine["mode"] = f"a barrier takes {format_seconds(max(run(lambda groups: groups.meet.latency_s())))}"
        for name in CALLS:
            for nbytes in counts if name != "barrier" else counts[:1]:
                seen = run(measure_calls, name, nbytes, turns)
                calls[name, nbytes] = slowest_rank([times for times, _ in seen])
                same.append(all(alike for _, alike in seen))
        if "barrier" in CALLS:
            calls |= {("barrier", nbytes): calls["barrier", counts[0]] for nbytes in counts}
        for kind in KINDS:
            trained = run(measure_steps, kind, steps)
            alike = all(losses[OURS] == losses[GLOO] for _, losses in trained)
            training.append(Trained(kind, slowest_rank([times for times, _ in trained]), trained[0][1], alike))
    hand_in(torch_markdown(machine, counts, calls, same, training), output)
    if not (all(same) and all(trained.same for trained in training)):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(bench_torch)
