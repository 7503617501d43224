"""What a call of Gloo, or of NCCL, costs more where it is watched: `python -m benchmarks.watched_calls`.

Two ranks make small calls, watched and not in turn, in one process each: the same blocks, in which torch's methods are
ours or its own. In step: with the call of the backend. Alone: with a stand-in for it, which returns at once.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from torch._C import _distributed_c10d as c10d

import unisono
from unisono.integrations.torch import watched_calls

from .faults.scene import ONE_GPU
from .reports import Output, describe, hand_in, head, table

_HOW = """Microseconds of `dist.all_reduce` of 16 bytes, on two ranks of one host: medians over blocks of 200 calls, of
rank 0. Blocks that are watched and blocks that are not follow each other in the same process."""
_CALLS = 200


def _blocks(call: Callable[[], Any], switch: Callable[[bool], None], blocks: int) -> list[float]:
    """The median times of a call, not watched and watched, in µs."""
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * blocks):
        watched = bool(number % 2)
        switch(watched)
        began = time.perf_counter()
        for _ in range(_CALLS):
            call()
        times[watched].append((time.perf_counter() - began) / _CALLS * 1e6)
    return [median(times[watched]) for watched in (False, True)]


_PLACES: dict[str, Any] = {"allreduce": c10d.ProcessGroup, "wait": c10d.Work}


def _methods() -> dict[str, Any]:
    return {name: vars(place)[name] for name, place in _PLACES.items()}


def _work(folder: str, blocks: int, backend: str) -> dict[str, list[float]]:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_HOSTID": f"{unisono.get_rank()}", **ONE_GPU}
    plain = _methods()
    unisono.watch()
    ours = _methods()
    dist.init_process_group(backend, f"file://{folder}/meeting", rank=unisono.get_rank(), world_size=2)
    on_gpu = backend == "nccl"
    ones = torch.ones(4, device="cuda" if on_gpu else "cpu")

    def call() -> None:
        dist.all_reduce(ones)
        if on_gpu:
            torch.cuda.synchronize()

    seen = {f"in step, with {backend}'s call": _blocks(call, _switch(plain, ours), blocks)}
    if on_gpu:
        seen["in step, the GPU not awaited"] = _blocks(lambda: dist.all_reduce(ones), _switch(plain, ours), blocks)
    dist.barrier()
    done = c10d.Work()
    stand_ins: dict[str, Any] = {"allreduce": lambda *_: done, "wait": lambda _: None}
    around = {
        "allreduce": watched_calls.logging("allreduce", _no_cause, stand_ins["wait"])(stand_ins["allreduce"]),
        "wait": watched_calls.waiting(_no_cause)(stand_ins["wait"]),
    }
    seen["alone, with a stand-in"] = _blocks(lambda: dist.all_reduce(ones), _switch(stand_ins, around), blocks)
    _switch(plain, ours)(True)
    dist.destroy_process_group()
    return seen


def _switch(plain: dict[str, Any], ours: dict[str, Any]) -> Callable[[bool], None]:
    def switch(watched: bool) -> None:
        for name, method in (ours if watched else plain).items():
            setattr(_PLACES[name], name, method)

    return switch


def _no_cause(_: Any) -> None:
    """No call fails here."""


def bench_watched_calls(
    *,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of each kind.")] = 200,
    backend: Annotated[str, typer.Option(help="gloo, or nccl: both ranks on one GPU.")] = "gloo",
    output: Output = None,
) -> None:
    """Measure what a call costs, watched and not."""
    machine = describe()
    with tempfile.TemporaryDirectory() as folder:
        seen = unisono.run(_work, 2, args=(folder, blocks, backend))[0]
    rows = [
        [name, f"{plain:.1f}", f"{watched:.1f}", f"{watched - plain:.2f}"] for name, (plain, watched) in seen.items()
    ]
    hand_in(head("A call that is watched", machine, _HOW) + table(["", "not watched", "watched", "more"], rows), output)


if __name__ == "__main__":
    typer.run(bench_watched_calls)
