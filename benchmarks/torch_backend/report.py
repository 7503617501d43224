"""The results as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from unisono.base.units import format_bytes

from ..names import GLOO, OURS
from .calls import Times
from .steps import ALONE

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
) -> str:
    """The whole report."""
    parts = ["# torch.distributed: our backend beside Gloo", ""]
    parts += [f"- {name}: {f'`{value}`' if name == 'command' else value}" for name, value in machine.items()]
    parts += ["", _HOW]
    for title, figure in (("Medians", median), ("Least times", min)):
        parts += ["", f"## {title}, in µs: ours / Gloo", ""]
        parts += _row(["call", *map(format_bytes, sizes)])
        parts += _row(["---"] * (len(sizes) + 1))
        for name in dict.fromkeys(call.name for call in calls):
            mine = {call.nbytes: call for call in calls if call.name == name}
            found = [mine.get(nbytes) or mine.get(None) for nbytes in sizes]
            cells = [_cell([figure(call.times[who]) * 1e6 for who in (OURS, GLOO)]) if call else "" for call in found]
            parts += _row([f"`{name}`", *cells])
    parts += ["", f"Calls whose results differ from Gloo's: {sum(not call.same for call in calls)} of {len(calls)}."]
    parts += ["", "## Training steps, in ms: median (least)", "", _STEPS, ""]
    contenders = OURS, GLOO, ALONE
    parts += _row(["", *contenders, "steps", "loss of the last step: ours, Gloo's", "all losses equal"])
    parts += _row(["---"] * 7)
    for trained in steps:
        times = [
            f"{median(trained.times[who]) * 1e3:.1f} ({min(trained.times[who]) * 1e3:.1f})" for who in trained.times
        ]
        last = ", ".join(repr(trained.losses[who][-1]) for who in (OURS, GLOO))
        count = len(trained.losses[OURS])
        parts += _row([f"`{trained.kind}`", *times, str(count), last, "yes, to the last bit" if trained.same else "no"])
    return "\n".join(parts) + "\n"


def _row(cells: Sequence[str]) -> Iterator[str]:
    yield "| " + " | ".join(cells) + " |"


def _cell(figures: Sequence[float]) -> str:
    ours, theirs = figures
    return f"{ours:.3g} / {theirs:.3g} ({theirs / ours:.1f}×)"
