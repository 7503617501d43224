"""Calls of torch.distributed and training steps, on our backend and on Gloo: `python -m benchmarks.torch_backend`."""

from typing import Annotated

import typer

from unisono.base.units import parse_bytes

from ..runs import GLOO, OURS, TORCH, Output, Table, begin, hand_in, of_times
from ..turns import Times, slowest_rank
from .ranks import CALLS, KINDS, measure_calls, measure_steps, two_backends

_HOW = """\
Two processes on one host, float32. A time is that of one call out of a batch, back to back, of the slower rank; a size
counts the larger tensor of a rank. Both backends have their process groups in the same two processes and take turns.
Every result is compared with Gloo's, bit by bit."""

_STEPS = """\
The models: a small transformer; then 16 linear layers of 512 in buckets of 4 MiB, for which "without communication" is
DistributedDataParallel with a hook that does nothing."""


def bench_torch(
    *,
    sizes: Annotated[str, typer.Option(help="Bytes of a rank's larger tensor, multiples of 8.")] = "8,64KiB,4MiB",
    turns: Annotated[int, typer.Option(min=1, help="How often each contender has its turn.")] = 9,
    steps: Annotated[int, typer.Option(min=1, help="Training steps that are timed.")] = 30,
    output: Output = None,
) -> None:
    """Measure torch.distributed on two ranks with our backend beside Gloo: every call, then training."""
    counts, run = list(map(parse_bytes, sizes.split(","))), begin("torch.distributed", _HOW, _STEPS, code=TORCH)
    calls, training = dict[tuple[str, int], Times](), dict[str, Times]()
    same, losses = list[bool](), list[list[str | int | float]]()
    with two_backends(2) as on_ranks:
        for name in CALLS:
            for nbytes in counts if name != "barrier" else counts[:1]:
                seen = on_ranks(measure_calls, name, nbytes, turns)
                calls[name, nbytes] = slowest_rank([times for times, _ in seen])
                same.append(all(alike for _, alike in seen))
        for kind in KINDS:
            trained = on_ranks(measure_steps, kind, steps)
            training[kind] = slowest_rank([times for times, _ in trained])
            alike = all(of_rank[OURS] == of_rank[GLOO] for _, of_rank in trained)
            last = (trained[0][1][who][-1] for who in (OURS, GLOO))
            losses.append([kind, steps, *last, "yes, to the last bit" if alike else "no"])
            same.append(alike)
    run.how.append(f"Calls and trainings whose results differ from Gloo's: {same.count(False)} of {len(same)}.")
    run.tables = [
        of_times("calls", ["call", "bytes"], calls),
        of_times("training steps", ["training"], training),
        Table("loss of the last step", ["training", "steps", OURS, GLOO, "all losses equal"], losses),
    ]
    hand_in(run, output)
    if not all(same):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(bench_torch)
