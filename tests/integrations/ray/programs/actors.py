"""Every call of ray.util.collective on actors; prints, as JSON, what each rank has found.

python actors.py HOST...        a rank for each word, on the host of that name
"""

import json
import sys
from typing import Any

import numpy as np
import ray
import torch
from ray.util import collective
from ray.util.collective.types import ReduceOp

import unisono.integrations.ray


@ray.remote(num_cpus=0)
class Worker:
    """A rank."""

    def __init__(self, rank: int, size: int) -> None:
        unisono.ray.register()
        self.rank, self.size = rank, size

    def meet(self, name: str = "default") -> str:
        """Make a group; on which hosts its ranks are."""
        collective.init_collective_group(self.size, self.rank, backend="unisono", group_name=name)
        return str(collective.get_group_handle(name).group.hosts.text)

    def declared(self) -> list[float]:
        """A call in a group that the driver has declared."""
        tensor = torch.full((3,), 10.0**self.rank)
        collective.allreduce(tensor, "declared")
        return tensor.tolist()

    def calls(self) -> dict[str, Any]:
        """What each call makes of numbers that differ on every rank."""
        rank, size, found = self.rank, self.size, {}
        for op in ReduceOp:
            tensor = torch.tensor([rank + 1.0, rank + 2.0])
            collective.allreduce(tensor, op=op)
            found[f"allreduce {op.name}"] = tensor.tolist()
        array = np.full(3, 10.0**rank)
        collective.allreduce(array)
        found["allreduce of an array"] = array.tolist()
        tensor = torch.full((2,), 10.0**rank)
        collective.reduce(tensor, dst_rank=1)
        found["reduce"] = tensor.tolist()
        tensor = torch.full((2,), 10.0**rank)
        collective.broadcast(tensor, src_rank=size - 1)
        found["broadcast"] = tensor.tolist()
        parts = [torch.zeros(2) for _ in range(size)]
        collective.allgather(parts, torch.tensor([rank, -1.0 * rank]))
        found["allgather"] = torch.cat(parts).tolist()
        tensor, parts = torch.zeros(2), [torch.full((2,), 10.0**rank * (peer + 1)) for peer in range(size)]
        collective.reducescatter(tensor, parts)
        found["reducescatter"] = tensor.tolist()
        collective.barrier()
        tensor = torch.tensor([7.0 + rank])
        if rank == 0:
            collective.send(tensor, size - 1)
        elif rank == size - 1:
            collective.recv(tensor, 0)
        found["send and recv"] = tensor.tolist()
        return found

    def mistake(self) -> list[bool]:
        """A call with another op on each rank: what error it raises, and whether that names this file."""
        try:
            collective.allreduce(torch.ones(3), op=ReduceOp.SUM if self.rank else ReduceOp.MAX)
        except RuntimeError as error:
            return [isinstance(error, unisono.MismatchError), "actors.py" in str(error)]
        return []

    def leave(self) -> int:
        """Destroy the group."""
        collective.destroy_collective_group("default")
        return collective.get_rank("default")


def main(hosts: list[str]) -> None:
    """Make the calls; twice, in groups of one name."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    unisono.ray.register()
    workers = [
        Worker.options(runtime_env={"env_vars": {"UNISONO_HOST_ID": host, "OMP_NUM_THREADS": "1"}}).remote(
            rank, len(hosts)
        )
        for rank, host in enumerate(hosts)
    ]
    found = {}
    for name in ("hosts", "hosts again"):
        found[name] = ray.get([worker.meet.remote() for worker in workers])
        found["calls"] = ray.get([worker.calls.remote() for worker in workers])
        found["mistakes"] = ray.get([worker.mistake.remote() for worker in workers])
        found["left"] = ray.get([worker.leave.remote() for worker in workers])
    collective.create_collective_group(workers, len(hosts), [*range(len(hosts))], "unisono", "declared")
    found["declared"] = ray.get([worker.declared.remote() for worker in workers])
    sys.stdout.write(json.dumps(found))
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
