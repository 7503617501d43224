"""A training in which every few seconds a rank fails, and a newcomer takes its place: `python -m benchmarks.recovery`.

The group is changed by `torch.distributed._reconfigure`, which torch has from 2.15 on. Beside Gloo.
"""

import multiprocessing
import os
import signal
import sys
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from statistics import median
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer

from .runs import GLOO, OURS, RANKS, TORCH, Cell, Output, Table, begin, hand_in

_HOW = """\
Four ranks of one host train a model of 1000 weights. A step computes for {step_s} s, and then adds the gradients of all
ranks. Every {every_s} s a rank is {word}, and a new process starts, which is forked from one that has loaded torch. The
survivors' calls raise an error, after {silent_s:g} s at the latest; then they and the newcomer reconfigure the group,
and the newcomer gets the weights of a survivor. Times are from the failure to the end of the first step after it."""
_RANKS, _WEIGHTS, _LIMIT_S, _SILENT_S = 4, 1000, 30.0, 3.0
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["benchmarks.runs", "unisono.integrations.torch.process_group"])


def _work(backend: str, port: int, number: int, pipe: Connection, steps: int, step_s: float) -> None:
    """One process. Before each change of the group it sends its handle and receives those of all ranks. Then it sends
    the time of its first step, and in the end its weights.
    """
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    known: Any = dist
    limit = timedelta(seconds=_SILENT_S)
    known.init_process_group(
        backend, store=store, rank=number, world_size=number + 1, timeout=limit, enable_reconfigure=True
    )
    state, target = torch.zeros(_WEIGHTS + 1), torch.arange(_WEIGHTS) / (number + 1)
    while True:
        pipe.send(known._get_reconfigure_handle())  # noqa: SLF001  torch's name
        uuid, handles = pipe.recv()
        try:
            known._reconfigure(uuid, handles, timeout=timedelta(seconds=_LIMIT_S)).wait()  # noqa: SLF001
            dist.broadcast(state, 0)
            first = True
            while state[-1] < steps:
                time.sleep(step_s)
                gradient = torch.cat([state[:-1] - target, torch.tensor([-100.0])])
                dist.all_reduce(gradient)
                state -= gradient / (100 * dist.get_world_size())
                if first:
                    pipe.send(time.monotonic())
                first = False
        except RuntimeError:
            continue  # a rank has failed
        pipe.send(state.tolist())
        return


class _Training:
    """The processes of one training, and what they are to do."""

    def __init__(self, backend: str, steps: int, step_s: float) -> None:
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._what, self._number, self._uuid = (backend, self._store.port), 0, 0
        self._how = steps, step_s
        self.ranks: list[tuple[BaseProcess, Connection]] = []

    def start(self) -> None:
        """Start a process."""
        here, there = _FORKS.Pipe()
        made = _FORKS.Process(target=_work, args=(*self._what, self._number, there, *self._how), daemon=True)
        made.start()
        there.close()
        self.ranks.append((made, here))
        self._number += 1

    def form(self) -> float:
        """Let all that are there form a group, in this order, until it makes a step; return when it has made it."""
        said: list[Any] = [None] * len(self.ranks)
        while not all(isinstance(one, float) for one in said):
            self._uuid += 1
            handles = [
                one if isinstance(one, str) else self._hear(pipe)
                for one, (_, pipe) in zip(said, self.ranks, strict=True)
            ]
            for _, pipe in self.ranks:
                pipe.send((self._uuid, handles))
            said = [self._hear(pipe) for _, pipe in self.ranks]
        return float(min(said))

    def ends(self) -> list[Any]:
        """The weights of all ranks, when the training has ended."""
        steps, step_s = self._how
        return [self._hear(pipe, steps * step_s + 2 * _LIMIT_S) for _, pipe in self.ranks]

    def _hear(self, pipe: Connection, within_s: float = 2 * _LIMIT_S) -> Any:
        if not pipe.poll(within_s):
            sys.exit(f"a rank of {self._what[0]} has said nothing for {within_s:g} s")
        return pipe.recv()


def _train(backend: str, steps: int, step_s: float, every_s: float, how: int) -> tuple[list[float], bool]:
    """Seconds from each failure to the end of the next step; and whether all ranks have the same weights in the end."""
    training, took_s = _Training(backend, steps, step_s), list[float]()
    for _ in range(_RANKS):
        training.start()
    began = training.form()
    for number in range(1, int(steps * step_s / every_s)):
        time.sleep(max(0.0, began + number * every_s - time.monotonic()))
        victim, _ = training.ranks.pop(3 * number % _RANKS)
        os.kill(victim.pid or 0, how)
        failed_at = time.monotonic()
        training.start()
        took_s.append(training.form() - failed_at)
        victim.kill()
        victim.join()
    weights = training.ends()
    for process, _ in training.ranks:
        process.join()
    return took_s, weights.count(weights[0]) == _RANKS


def bench_recovery(
    *,
    steps: Annotated[int, typer.Option(help="Of the training.")] = 200,
    step_s: Annotated[float, typer.Option(help="How long a step computes.")] = 0.6,
    every_s: Annotated[float, typer.Option(help="How often a rank fails.")] = 5.0,
    stop: Annotated[bool, typer.Option(help="Ranks are stopped, not killed.")] = False,
    who: Annotated[str, typer.Option(help="Which libraries.")] = f"{OURS},{GLOO}",
    output: Output = None,
) -> None:
    """Let ranks of a training fail, and measure when it goes on."""
    word, silent_s = "stopped" if stop else "killed", _SILENT_S
    run = begin("A newcomer takes the place of a failed rank", _HOW.format(**locals()), code=[*TORCH, *RANKS])
    rows: list[list[Cell]] = []
    for name in who.split(","):
        took_s, equal = _train(name.lower(), steps, step_s, every_s, signal.SIGSTOP if stop else signal.SIGKILL)
        middle, worst = (f"{statistic(took_s):.2f} s" for statistic in (median, max))
        rows.append([name, steps, len(took_s), middle, worst, "equal" if equal else "different"])
    headings = ["library", "steps", "failures", "until the next step", "worst", "weights of the ranks"]
    run.tables = [Table("trainings", headings, rows)]
    hand_in(run, output)


if __name__ == "__main__":
    typer.run(bench_recovery)
