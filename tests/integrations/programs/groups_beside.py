"""Groups of Gloo's beside those that train, as in large trainings: torchrun groups_beside.py BACKEND DIRECTORY.

The ranks are a grid of model parallel and data parallel ones. Each row and column has a group for training, and the
data parallel ones another, for the CPU: through it the first rank collects the parts of the optimizer's state to write
them, and spreads those that it has read. Times are agreed on by reductions, plans as objects.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

MODEL_PARALLEL, PART = 2, 1000
LIMIT = timedelta(minutes=2)


def main(backend: str, directory: str) -> None:
    distributed.init_process_group("unisono" if backend == "unisono" else None)  # "cpu:gloo", and NCCL's where it is
    rank, size = distributed.get_rank(), distributed.get_world_size()
    beside: Any = None
    for first in range(MODEL_PARALLEL):
        ranks = list(range(first, size, MODEL_PARALLEL))
        trains = distributed.new_group(ranks, timeout=LIMIT)
        for_cpu = distributed.new_group(ranks, timeout=LIMIT, backend=backend)
        if rank in ranks:
            data_parallel, beside, members = trains, for_cpu, ranks
    for first in range(0, size, MODEL_PARALLEL):
        ranks = list(range(first, first + MODEL_PARALLEL))
        group = distributed.new_group(ranks, timeout=LIMIT)
        if rank in ranks:
            model_parallel = group
    torch.manual_seed(rank)
    part = torch.randn(PART)
    distributed.all_reduce(part, group=model_parallel)
    distributed.all_reduce(part, distributed.ReduceOp.AVG, group=data_parallel)
    state, written = torch.randn(PART), None
    to = members[0]
    places = [torch.empty(PART) for _ in members] if rank == to else None
    distributed.gather(state, places, dst=to, group=beside)
    if places is not None:
        written = torch.cat(places).tolist()
    read = torch.zeros(PART)
    distributed.scatter(read, [place * 2 for place in places] if places is not None else None, src=to, group=beside)
    plans: list[Any] = [None] * len(members)
    distributed.all_gather_object(plans, {"rank": rank, "bytes": state.nbytes}, group=beside)
    slowest = torch.tensor([float(rank)], dtype=torch.float64)
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX, group=beside)
    distributed.monitored_barrier(group=beside, timeout=LIMIT)
    result = {
        "group": type(beside).__name__,
        "part": part.tolist(),
        "written": written,
        "read": bool(torch.equal(read, state * 2)),
        "plans": plans,
        "slowest": slowest.item(),
    }
    Path(directory, f"{os.environ['RANK']}.json").write_text(json.dumps(result))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
