"""`init` and `shutdown`, alone and under torchrun."""

import re
import socket

import pytest

from tests.support.programs import free_port
from unisono import run
from unisono.base.config import Config
from unisono.base.errors import ArgumentError, WaitTimeout
from unisono.ranks.group.current import get_default
from unisono.ranks.group.initialize import init, shutdown


@pytest.fixture
def alone(monkeypatch):
    """Without a launcher."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    yield
    shutdown()


def test_one_process_is_a_world_of_one(alone):
    assert get_default() is None
    first = init()
    assert (first.rank, first.size) == (0, 1)
    assert init() is init(rank=0, size=1) is get_default() is first
    with pytest.raises(ArgumentError, match="size: got 2, but this process is already rank 0 of 1"):
        init(rank=0, size=2)
    shutdown()
    shutdown()
    assert first.closed
    assert get_default() is None
    assert init() is not first


def test_environment_does_not_change_ranks_of_run(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "9")
    assert run(lambda: (init().rank, init().size), 2) == [(0, 2), (1, 2)]


COME, LISTEN = "has waited 0\\.\\d+ s for ranks 1, 2, 3 to come at", "for rank 0 to listen at localhost:\\d+;"


@pytest.mark.parametrize(
    ("rank", "missing", "warning_s", "words"),
    [(0, (1, 2, 3), 0.2, COME), (2, (0,), 0.2, LISTEN), (0, (1, 2, 3), 0.0, ""), (0, (1, 2, 3), 60.0, "")],
    ids=["by rank 0", "by another rank", "never", "soon enough"],
)
def test_absence_is_told_once(alone, monkeypatch, capfd, rank, missing, warning_s, words):
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        monkeypatch.setenv("MASTER_PORT", f"{nobody.getsockname()[1] if rank else 0}")
        with pytest.raises(WaitTimeout) as caught:
            init(rank=rank, size=4, timeout_s=0.6, config=Config(stall_warning_s=warning_s))
    assert caught.value.missing == missing
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("unisono: ")]
    assert len(said) == bool(words)
    assert all(
        re.match(f"unisono: rank {rank} of 4 .*{words}.* it waits for at most [01] s more$", line) for line in said
    )


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
@pytest.mark.parametrize("way", [pytest.param("own", marks=pytest.mark.long), "torch"])
def test_restart_with_two_agents(python, tmp_path, way):
    """Only the agent whose rank has failed counts a restart."""
    program, port = tmp_path / "program.py", free_port()
    program.write_text(PROGRAM)
    command = ["-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 1, "--max-restarts", 1]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"]
    agents = [python(*command, program, tmp_path / "failed", way) for _ in range(2)]
    said = [agent.communicate(timeout=90) for agent in agents]
    assert sorted(out for out, _ in said) == [f"{count} [2.0, 2.0, 2.0]\n" for count in (0, 1)], said
