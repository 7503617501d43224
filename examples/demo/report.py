"""The tables that the demo prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from unisono.base.units import format_seconds

from .collectives import COLLECTIVES, Numbers
from .model import LENGTH
from .training import BATCH, Step

Steps = Sequence[Sequence[Step]]
"""For each step, what each rank saw."""


@dataclass(frozen=True)
class Totals:
    """Seconds, summed over steps. Computing and waiting: mean of the ranks. Communicating and whole: slowest rank."""

    compute_s: float
    wait_s: float
    communicate_s: float
    whole_s: float


def totals(steps: Steps) -> Totals:
    """Add up the times of a training."""
    return Totals(
        compute_s=sum(sum(seen.compute_s for seen in step) / len(step) for step in steps),
        wait_s=sum(sum(seen.wait_s for seen in step) / len(step) for step in steps),
        communicate_s=sum(max(seen.communicate_s for seen in step) for step in steps),
        whole_s=sum(max(seen.compute_s + seen.wait_s + seen.communicate_s for seen in step) for step in steps),
    )


def mean_loss(step: Sequence[Step]) -> float:
    """The loss of a step over the batches of all ranks."""
    return sum(seen.loss for seen in step) / len(step)


def difference(one: Steps, other: Steps) -> float:
    """The largest difference between the losses of two trainings at the same step."""
    return max(abs(mean_loss(a) - mean_loss(b)) for a, b in zip(one, other, strict=True))


def collectives(results: Sequence[Sequence[tuple[Numbers, Numbers]]]) -> Table:
    """What each rank held before and after each of COLLECTIVES. results: for each rank, one pair per collective."""
    table = Table("", "", *(f"rank {rank}" for rank in range(len(results))))
    for number, (name, (words, _)) in enumerate(COLLECTIVES.items()):
        before, after = zip(*(result[number] for result in results), strict=True)
        table.add_row(f"[bold]{name}[/]", "before", *map(_numbers, before))
        table.add_row(words, "after", *(f"[green]{_numbers(values)}[/]" for values in after), end_section=True)
    return table


def _numbers(values: Numbers) -> str:
    return " ".join(map(str, values)) or "·"


def summary(trained: Mapping[str, Steps]) -> Table:
    """Two trainings side by side, and how many times faster the first was."""
    table = Table("", *trained, "ratio")
    first, second = map(totals, trained.values())
    characters = sum(map(len, next(iter(trained.values())))) * BATCH * LENGTH
    both = trained.values()
    table.add_row("steps", *(str(len(steps)) for steps in both), "")
    table.add_row("loss at the start", *(f"{mean_loss(steps[0]):.4f}" for steps in both), "")
    table.add_row("loss at the end", *(f"{mean_loss(steps[-1]):.4f}" for steps in both), "", end_section=True)
    table.add_row("computing", format_seconds(first.compute_s), format_seconds(second.compute_s), "")
    table.add_row("waiting for the slowest rank", format_seconds(first.wait_s), format_seconds(second.wait_s), "")
    table.add_row(
        "[bold]communicating[/]",
        format_seconds(first.communicate_s),
        format_seconds(second.communicate_s),
        f"[bold]{second.communicate_s / first.communicate_s:.1f}x[/]",
    )
    rates = [f"{characters / time.whole_s:,.0f}" for time in (first, second)]
    table.add_row("characters per second", *rates, f"{second.whole_s / first.whole_s:.2f}x")
    return table
