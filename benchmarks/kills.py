"""A training whose ranks are killed at random; then the same without a kill: every loss must be the same, to the bit.

    python -m benchmarks.kills

Four ranks train the demo's language model. Every few seconds one of them, at random, is killed, at whatever it does;
the others make that step again. The one that is left at last hands its model to a new world of
four. The second training is told which ranks took part in which step, and nobody is killed.
"""

import itertools
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import torch
import typer
from examples.demo.model import LENGTH, CharacterModel, read_text

import unisono
from unisono.base.units import format_seconds

from .runs import RANKS as CODE
from .runs import Output, Run, Table, begin, hand_in

RANKS, BATCH = 4, 4
"""Windows of text per rank and step."""


class Step(NamedTuple):
    """What a rank has written down of a step: who took part, the loss in hex, when it ended, how often it was begun."""

    number: int
    members: tuple[int, ...]
    loss: str
    at: float
    tries: int


class Training(NamedTuple):
    """worlds: the steps of each, in order. kills: when. state: the model at the end.

    agree: did all ranks write down the same of each step, and end with the same model?
    """

    worlds: list[list[Step]]
    kills: list[float]
    state: torch.Tensor | None
    agree: bool


Made = tuple[tuple[int, ...], float, bool]
"""The ranks that have made a step, their mean loss, and whether one of them wants to end."""


class _Trainer:
    """A model that Adam trains. state: its parameters, and two averages. One call averages all that the ranks share."""

    def __init__(self, state: torch.Tensor | None) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)  # the same start on every rank
        self._model = CharacterModel()
        parameters = list(self._model.parameters())
        count = sum(parameter.numel() for parameter in parameters)
        self.state = torch.zeros(3, count)
        self._sums, at = unisono.empty(count + 2), 0
        for parameter in parameters:
            here = slice(at, at := at + parameter.numel())
            self.state[0, here] = parameter.detach().flatten()
            parameter.data = self.state[0, here].view_as(parameter)
            parameter.grad = self._sums[here].view_as(parameter)
        if state is not None:
            self.state.copy_(state)
        text, self.me = read_text(), unisono.get_rank()
        self._text = text[: len(text) // RANKS * RANKS].view(RANKS, -1)[self.me]

    def step(self, number: int, group: unisono.Group, *, wants_end: bool = False) -> tuple[float, bool]:
        """Step `number` by the ranks of this group, on data of its own; the mean loss, and does anybody want to end?"""
        generator = torch.Generator().manual_seed(number * RANKS + self.me)
        starts = torch.randint(len(self._text) - LENGTH, (BATCH, 1), generator=generator)
        self._sums.zero_()
        loss = self._model.loss(self._text[starts + torch.arange(LENGTH + 1)])
        loss.backward()  # type: ignore[no-untyped-call]
        self._sums[-2], self._sums[-1] = loss.detach(), float(wants_end)
        unisono.all_reduce(self._sums, "avg", group)
        gradients, (weights, mean, square) = self._sums[:-2], self.state
        mean.lerp_(gradients, 0.1)
        square.mul_(0.999).addcmul_(gradients, gradients, value=0.001)
        weights.addcdiv_(mean, square.sqrt().add_(1e-8), value=-0.001)
        return self._sums[-2].item(), bool(self._sums[-1] > 0)


def _survive(step: Callable[[], Made], state: torch.Tensor, number: int) -> Made:
    """Make a step on all ranks. If a rank dies in it, the survivors make it again, or count it on all of them."""
    saved, made = state.clone(), None
    again = False
    while True:
        try:
            if again:
                unisono.init().shrink()
                furthest = torch.tensor(number)
                unisono.all_reduce(furthest, "max")
                if made is not None and furthest > number:  # a survivor has passed the barrier
                    return made
                state.copy_(saved)
            made = None
            made = step()
            unisono.barrier()
        except unisono.PeerGone:
            again = True
        else:
            return made


def _train(folder: str, state: torch.Tensor | None, number: int, until: float) -> torch.Tensor:
    """One rank's life: train until all others have died, or time is up."""
    trainer, tries = _Trainer(state), 0

    def step() -> Made:
        nonlocal tries
        tries += 1
        group = unisono.init()
        return group.world_ranks, *trainer.step(number, group, wants_end=time.monotonic() > until)

    with Path(folder, f"{trainer.me}").open("w", buffering=1) as log:
        end = False
        while not end and unisono.get_world_size() > 1:
            tries = 0
            members, loss, end = _survive(step, trainer.state, number)
            log.write(json.dumps(Step(number, members, loss.hex(), time.monotonic(), tries)) + "\n")
            number += 1
    return trainer.state


class _Killer(threading.Thread):
    """Kills a random rank of a world now and then, but never the last one."""

    def __init__(self, world: unisono.World, rng: random.Random, seconds: tuple[float, float]) -> None:
        super().__init__(daemon=True)
        self._world, self._rng, self._seconds = world, rng, seconds
        self._over, self._lock = threading.Event(), threading.Lock()
        self.kills: list[float] = []

    def run(self) -> None:
        left: dict[int, int] = {}
        while len(self.kills) < RANKS - 1 and not self._over.wait(self._rng.uniform(*self._seconds)):
            with self._lock:  # so that the world has these processes still
                if len(pids := self._world.pids) == RANKS and not self._over.is_set():
                    left = left or dict(enumerate(pids))
                    os.kill(left.pop(self._rng.choice(sorted(left))), signal.SIGKILL)
                    self.kills.append(time.monotonic())

    def stop(self) -> None:
        with self._lock:
            self._over.set()


def train_with_kills(minutes: float, seconds: tuple[float, float], seed: int = 0) -> Training:
    """Train for so long, with a kill after a time between these each."""
    rng, until = random.Random(seed), time.monotonic() + 60 * minutes  # noqa: S311  the same order of kills each time
    done, number = Training([], [], None, agree=True), 0
    while not done.worlds or time.monotonic() < until:
        with tempfile.TemporaryDirectory() as folder, unisono.world(RANKS, return_exceptions=True) as world:
            killer = _Killer(world, rng, seconds)
            killer.start()
            ends: list[Any] = world.run(_train, folder, done.state, number, until)
            killer.stop()
            logs = [_read(Path(folder, f"{rank}")) for rank in range(RANKS)]
        left = [rank for rank, end in enumerate(ends) if not isinstance(end, BaseException)]
        steps = logs[left[0]]  # who is left has taken part in all of them
        same = {step.number: (step.members, step.loss) for step in steps}
        agree = all(same.get(step.number) == (step.members, step.loss) for log in logs for step in log)
        state: torch.Tensor = ends[left[0]]
        agree &= all(torch.equal(ends[rank], state) for rank in left)
        agree &= RANKS - len(left) <= len(killer.kills)  # nobody has failed who was not killed
        done = Training([*done.worlds, steps], [*done.kills, *killer.kills], state, agree and done.agree)
        number = steps[-1].number + 1 if steps else number
    return done


def _read(log: Path) -> list[Step]:
    """The steps in a file; the last one is missing where its line has not been written to the end."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [Step(number, tuple(members), *rest) for number, members, *rest in map(json.loads, lines)]


def _again(state: torch.Tensor | None, steps: Sequence[Step]) -> tuple[torch.Tensor, list[str]] | None:
    """One rank of a replay: its part of these steps; if that is all of them, the model, and each loss in hex."""
    trainer, losses = _Trainer(state), []
    groups = {members: unisono.new_group(members) for members in dict.fromkeys(step.members for step in steps)}
    for step in steps:
        group = groups[step.members]
        if not isinstance(group, unisono.Group):
            return None
        losses.append(trainer.step(step.number, group)[0].hex())
    return trainer.state, losses


def replay(worlds: Sequence[Sequence[Step]]) -> tuple[torch.Tensor | None, list[str]]:
    """The same steps by the same ranks, without a kill: the model at the end, and each loss in hex."""
    state: torch.Tensor | None = None
    losses: list[str] = []
    for steps in worlds:
        state, more = next(filter(None, unisono.run(_again, RANKS, args=(state, steps))))
        losses += more
    return state, losses


def fill(run: Run, seconds: tuple[float, float], done: Training, losses: Sequence[str], *, same_model: bool) -> None:
    """Add all of it to a run. losses: those of the replay; same_model: did it end with the same bits?"""
    steps = [step for world in done.worlds for step in world]
    spans = [(a, b) for world in done.worlds for a, b in itertools.pairwise(world)]
    hit = [(a, b, sum(a.at < kill <= b.at for kill in done.kills)) for a, b in spans]
    usual = {
        size: median(times)
        for size in range(1, RANKS + 1)
        if (times := [b.at - a.at for a, b, count in hit if not count and len(b.members) == size])
    }
    lost = [(b.at - a.at - usual[len(b.members)]) / n for a, b, n in hit if n and len(b.members) in usual]
    gaps = [after[0].at - before[-1].at for before, after in itertools.pairwise(filter(None, done.worlds))]
    same = sum(step.loss == loss for step, loss in zip(steps, losses, strict=True))
    begun = sum(step.tries - 1 for step in steps)
    missing = len(set(range(len(steps))) - {step.number for step in steps})
    means = [sum(float.fromhex(step.loss) for step in part) / len(part) for part in (steps[:50], steps[-50:])]
    run.how.append(
        f"{RANKS} ranks train the demo's language model of characters on the sources of the standard library, {BATCH} "
        f"windows per rank and step. Every {seconds[0]:g} to {seconds[1]:g} s a random rank is killed by SIGKILL, at "
        "whatever it does; the others make that step again. The last one that is left hands its "
        f"model to a new world of {RANKS}. Then all steps are made again by the ranks that took part in them, and "
        "nobody is killed."
    )
    rows = {
        "kills": len(done.kills),
        "worlds, one after the other": len(done.worlds),
        "steps": f"{len(steps):,}",
        "steps made again, or lost": f"{begun}, {missing}",
        "time lost by a kill, after which the others go on: median, most": _median_and_most(lost),
        "from the last step of a world to the first of the next one: median, most": _median_and_most(gaps),
        "loss, mean of the first 50 steps and of the last 50": f"{means[0]:.3f}, {means[1]:.3f}",
        "the ranks agree on every step, and none failed that was not killed": "yes" if done.agree else "NO",
        "losses equal to those without kills, to the last bit": f"{same:,} of {len(steps):,}",
        "the model at the end has the same bits": "yes" if same_model else "NO",
    }
    run.tables.append(
        Table("what happened", ["what", "how often or long"], [[name, str(value)] for name, value in rows.items()])
    )


def _median_and_most(seconds: Sequence[float]) -> str:
    return f"{format_seconds(median(seconds))}, {format_seconds(max(seconds))}" if seconds else "none"


def bench_kills(
    *,
    minutes: Annotated[float, typer.Option(help="Of training with kills; without, it takes about as long.")] = 10.0,
    least: Annotated[float, typer.Option(help="Seconds between kills, at least.")] = 1.0,
    most: Annotated[float, typer.Option(help="Seconds between kills, at most.")] = 5.0,
    output: Output = None,
) -> None:
    """Train while random ranks are killed, then without, and compare."""
    run = begin("Training with random kills", code=CODE)
    done = train_with_kills(minutes, (least, most))
    state, losses = replay(done.worlds)
    same = state is not None and done.state is not None and torch.equal(state, done.state)
    fill(run, (least, most), done, losses, same_model=same)
    hand_in(run, output)
    if not (done.agree and same and losses == [step.loss for world in done.worlds for step in world]):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(bench_kills)
