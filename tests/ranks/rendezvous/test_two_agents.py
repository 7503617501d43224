"""Ranks that two agents of torchrun have started, as on two nodes."""

from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.programs import Python

PROGRAM = """
import os, pathlib, sys, time
import torch
failed, way = pathlib.Path(sys.argv[1]), sys.argv[2]
again = failed.exists()
if again and os.environ["RANK"] == "0":
    time.sleep(1.0)  # the other rank finds only what the first start has left at the store
tensor = torch.ones(3)
if way == "own":
    import unisono
    unisono.init(timeout_s=60)
    unisono.all_reduce(tensor)
else:
    import torch.distributed as dist
    dist.init_process_group("unisono")
    dist.all_reduce(tensor)
if os.environ["RANK"] == "1" and not again:
    failed.touch()
    sys.exit(3)
if not again:
    time.sleep(100)
sys.stdout.write(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {tensor.tolist()}\\n")
"""


@pytest.mark.cold
@pytest.mark.parametrize("way", ["own", "torch"])
def test_restart_with_two_agents(python: Python, tmp_path: Path, way: str) -> None:
    """Only the agent whose rank has failed counts a restart."""
    program, port = tmp_path / "program.py", free_port()
    program.write_text(PROGRAM)
    command = ["-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 1, "--max-restarts", 1]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"]
    agents = [python(*command, program, tmp_path / "failed", way) for _ in range(2)]
    said = [agent.communicate(timeout=90) for agent in agents]
    assert sorted(out for out, _ in said) == [f"{count} [2.0, 2.0, 2.0]\n" for count in (0, 1)], said
