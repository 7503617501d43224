"""torchft's training over its group of Gloo: replicas fail, and others come. python torchft_train.py BACKEND DIRECTORY.

FAIL_S: how often one fails; FAILURES: how many times; HOW: by which signal. The model has one weight per replica.
"""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

REPLICAS, AFTER_S = 3, 45.0


def replicate(lighthouse: str, directory: str, number: str) -> None:
    """One replica: train until the file "end" says at which step to end."""
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    module = torch.nn.Linear(4, 1)

    def load(state: dict[str, dict[str, torch.Tensor]]) -> None:
        module.load_state_dict(state["model"])

    group = ProcessGroupGloo(timeout=timedelta(seconds=3))
    manager = Manager(
        pg=group,
        load_state_dict=load,
        state_dict=lambda: {"model": module.state_dict()},
        min_replica_size=1,
        replica_id=f"replica-{number}",
        lighthouse_addr=lighthouse,
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=15),
        use_async_quorum=False,
    )
    model, end = DistributedDataParallel(manager, module), Path(directory, "end")
    optimizer = Optimizer(manager, torch.optim.SGD(module.parameters(), lr=0.01))
    generator = torch.Generator().manual_seed(int(number))
    steps: list[tuple[int, float]] = []
    while not end.exists() or manager.current_step() < int(end.read_text()):
        time.sleep(0.05)
        optimizer.zero_grad()
        x = torch.rand(8, 4, generator=generator)
        (model(x) - x.sum(dim=1, keepdim=True)).square().mean().backward()
        optimizer.step()
        steps.append((manager.current_step(), time.time()))
        Path(directory, f"step-{number}").write_text(f"{steps[-1][0]}")
    kind = type(group.parent._get_backend(torch.device("cpu"))).__name__  # type: ignore[attr-defined]
    result = {"group": kind, "steps": steps, "weights": [one.tolist() for one in module.parameters()]}
    Path(directory, f"{number}.json").write_text(json.dumps(result))
    time.sleep(1.0)  # others may still commit this step
    manager.shutdown(wait=False)
    os._exit(0)


def main(_backend: str, directory: str) -> None:
    """Start replicas, and let them fail."""
    how, every_s = int(os.environ.get("HOW", signal.SIGKILL)), float(os.environ.get("FAIL_S", "5"))
    lighthouse = LighthouseServer(
        bind="[::]:0", min_replicas=1, join_timeout_ms=200, quorum_tick_ms=50, heartbeat_timeout_ms=1000
    )
    address, number, failures = lighthouse.address(), 0, []

    def start() -> tuple[int, subprocess.Popen[bytes]]:
        nonlocal number
        number += 1
        command = [sys.executable, __file__, "replica", address, directory, f"{number - 1}"]
        return number - 1, subprocess.Popen(command)

    replicas = [start() for _ in range(REPLICAS)]
    while not all(Path(directory, f"step-{one}").exists() for one, _ in replicas):
        time.sleep(0.1)
    for _ in range(int(os.environ.get("FAILURES", "2"))):
        time.sleep(every_s)
        _, victim = replicas.pop(0)
        victim.send_signal(how)
        failures.append(time.time())
        replicas.append(start())
        time.sleep(every_s / 2)
        victim.kill()
        victim.wait()
    time.sleep(AFTER_S)
    progress = [Path(directory, f"step-{one}") for one, _ in replicas]
    last = max(int(path.read_text()) for path in progress if path.exists())
    Path(directory, "end.new").write_text(f"{last + 60}")
    os.replace(Path(directory, "end.new"), Path(directory, "end"))
    for _, replica in replicas:
        replica.wait(60)
    Path(directory, "failures").write_text(json.dumps([failures, [one for one, _ in replicas]]))
    lighthouse.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "replica":
        replicate(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
