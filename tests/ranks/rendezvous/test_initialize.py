"""`init` and `shutdown`, alone and under torchrun."""

import re
import socket

import pytest

from tests.support.programs import torchrun
from unisono import run
from unisono.base.config import Config
from unisono.base.errors import ArgumentError, WaitTimeout
from unisono.ranks.group.current import get_default
from unisono.ranks.group.initialize import init, shutdown

SCRIPT = """
import os, sys, time
from unisono.ranks.group.current import get_default
from unisono import init, shutdown
group = init()
board = group.engine.arena.board
assert init() is group
assert group.rank == int(os.environ["RANK"])
assert group.size == int(os.environ["WORLD_SIZE"])
deadline = time.monotonic() + 30
while not all(board(peer).pid for peer in range(group.size)):
    assert time.monotonic() < deadline
pids = [board(peer).pid for peer in range(group.size)]
sys.stdout.write(f"rank {group.rank} of {group.size} at {pids}\\n")
shutdown()
assert get_default() is None
assert init() is not group
"""


@pytest.fixture
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    yield
    shutdown()


@pytest.fixture
def no_launcher(alone, monkeypatch):
    """A place where ranks can meet, at any port."""
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "0")


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


def test_environment_does_not_change_ranks_of_run(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "9")
    assert run(lambda: (init().rank, init().size), 2) == [(0, 2), (1, 2)]


def late(capfd: pytest.CaptureFixture[str]) -> str:
    """The line about ranks that are late. It is said once."""
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("unisono: ")]
    return line


def test_rank_0_names_absent_ranks_once(no_launcher, capfd):
    with pytest.raises(WaitTimeout) as caught:
        init(rank=0, size=4, timeout_s=1.0, config=Config(stall_warning_s=0.2))
    assert caught.value.missing == (1, 2, 3)
    assert get_default() is None
    words = (
        r"unisono: rank 0 of 4 has waited 0\.\d+ s for ranks 1, 2, 3 to come at \S+; it waits for at most [01] s more"
    )
    assert re.fullmatch(words, late(capfd))


def test_absence_of_rank_0_is_told_once(alone, monkeypatch, capfd):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", port := str(nobody.getsockname()[1]))
        with pytest.raises(WaitTimeout, match="MASTER_PORT"):
            init(rank=2, size=3, timeout_s=0.5, config=Config(stall_warning_s=0.1))
    assert f"for rank 0 to listen at 127.0.0.1:{port}; it waits for at most" in late(capfd)


@pytest.mark.parametrize("silence", ["never", "soon enough"])
def test_who_is_not_to_warn_does_not(silence, no_launcher, capfd):
    with pytest.raises(WaitTimeout):
        init(rank=0, size=2, timeout_s=0.2, config=Config(stall_warning_s=0.0 if silence == "never" else 60.0))
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
