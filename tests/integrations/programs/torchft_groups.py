"""torchft's group over Gloo, configured anew as ranks come and go: torchrun torchft_groups.py BACKEND DIRECTORY."""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.distributed_c10d import AllgatherOptions
from torchft.process_group import ProcessGroupGloo


def main(_backend: str, directory: str) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    group = ProcessGroupGloo(timeout=timedelta(seconds=60))
    results: dict[str, object] = {}
    for turn, members in enumerate((range(size), range(size - 1), range(size))):
        if rank in members:
            where = f"{host}:{port}/turn-{turn}"
            group.configure(where, f"replica-{rank}", members.index(rank), len(members))
            torch.manual_seed(rank + turn)
            tensor, blocks = torch.randint(-99, 99, (999,)).float(), [[torch.empty(3) for _ in members]]
            group.allreduce([tensor], distributed.ReduceOp.SUM).wait()
            group.allgather(blocks, [tensor[:3].clone()], AllgatherOptions()).wait()
            group.broadcast_one(tensor, members[-1]).wait()
            results[f"{turn}"] = [tensor.tolist(), [block.tolist() for block in blocks[0]]]
    backend = group.parent._get_backend(torch.device("cpu"))  # type: ignore[attr-defined]
    result = {"group": type(backend).__name__, **results}
    Path(directory, f"{rank}.json").write_text(json.dumps(result))
    group.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
