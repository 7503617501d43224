"""`init` and `shutdown`, alone and under torchrun."""

import os
import re
import socket
from unittest.mock import patch

import pytest

from tests.support.ports import free_port
from tests.support.programs import torchrun
from unisono import run
from unisono.base.config import Config
from unisono.base.errors import ArgumentError, WaitTimeout
from unisono.ranks.group.current import get_default
from unisono.ranks.group.initialize import init, shutdown

SCRIPT = """
import os, sys
from unisono import all_gather_object, get_rank, init, shutdown
group, pids = init(), [None] * int(os.environ["WORLD_SIZE"])
assert init() is group
assert group.rank == int(os.environ["RANK"])
all_gather_object(pids, os.getpid())
sys.stdout.write(f"rank {group.rank} of {group.size} at {pids}\\n")
shutdown()
assert init() is not group
"""


@pytest.fixture
def alone():
    """Without a launcher."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    with patch.dict(os.environ):
        for name in names:
            os.environ.pop(name, None)
        yield
        shutdown()


def meeting_at(port):
    """Ranks can meet at this port of this host."""
    return patch.dict(os.environ, MASTER_ADDR="localhost", MASTER_PORT=f"{port}")


def test_one_process_is_a_world_of_one(alone):
    assert get_default() is None
    group = init()
    assert (group.rank, group.size) == (0, 1)
    assert init() is group
    assert init(rank=0, size=1) is group
    assert get_default() is group
    with pytest.raises(ArgumentError, match="size: got 2, but this process is already rank 0 of 1"):
        init(rank=0, size=2)


def test_init_after_shutdown_starts_anew(alone):
    first = init()
    shutdown()
    shutdown()
    assert first.closed
    assert get_default() is None
    assert init() is not first


def test_environment_does_not_change_ranks_of_run():
    with patch.dict(os.environ, RANK="0", WORLD_SIZE="9"):
        assert run(lambda: (init().rank, init().size), 2) == [(0, 2), (1, 2)]


def late(capfd: pytest.CaptureFixture[str]) -> str:
    """The line about ranks that are late. It is said once."""
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("unisono: ")]
    return line


def test_rank_0_names_absent_ranks_once(alone, capfd):
    with meeting_at(0), pytest.raises(WaitTimeout) as caught:
        init(rank=0, size=4, timeout_s=1.0, config=Config(stall_warning_s=0.2))
    assert caught.value.missing == (1, 2, 3)
    assert get_default() is None
    words = (
        r"unisono: rank 0 of 4 has waited 0\.\d+ s for ranks 1, 2, 3 to come at \S+; it waits for at most [01] s more"
    )
    assert re.fullmatch(words, late(capfd))


def test_absence_of_rank_0_is_told_once(alone, capfd):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        port = nobody.getsockname()[1]
        with meeting_at(port), pytest.raises(WaitTimeout, match="MASTER_PORT"):
            init(rank=2, size=3, timeout_s=0.5, config=Config(stall_warning_s=0.1))
    assert f"for rank 0 to listen at localhost:{port}; it waits for at most" in late(capfd)


@pytest.mark.parametrize("warning_s", [0.0, 60.0], ids=["never", "soon enough"])
def test_who_is_not_to_warn_does_not(warning_s, alone, capfd):
    with meeting_at(0), pytest.raises(WaitTimeout):
        init(rank=0, size=2, timeout_s=0.2, config=Config(stall_warning_s=warning_s))
    assert "has waited" not in capfd.readouterr().err


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_torchrun(tmp_path, size):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = torchrun(size, script)
    assert done.returncode == 0, done.stderr
    said = sorted(done.stdout.splitlines())
    assert [line.split(" at ")[0] for line in said] == [f"rank {rank} of {size}" for rank in range(size)]
    assert len({line.split(" at ")[1] for line in said}) == 1


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
def test_restart_with_two_agents(python, tmp_path, way):
    """Only the agent whose rank has failed counts a restart."""
    program, port = tmp_path / "program.py", free_port()
    program.write_text(PROGRAM)
    command = ["-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 1, "--max-restarts", 1]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"]
    agents = [python(*command, program, tmp_path / "failed", way) for _ in range(2)]
    said = [agent.communicate(timeout=90) for agent in agents]
    assert sorted(out for out, _ in said) == [f"{count} [2.0, 2.0, 2.0]\n" for count in (0, 1)], said
