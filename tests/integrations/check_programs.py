"""Programs of other projects, unchanged, on this backend and under Gloo's name; they compute what Gloo makes of it.

`make .venv/ready-integrations` installs the projects. Then `python -m pytest -rP --durations=0` with the path of this
file runs it. pytest does not find it by its name: all other tests do without these projects.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.markdown import ROOT, blocks

PROGRAMS = Path(__file__).parent / "programs"
GROUPS = {"unisono": {"UnisonoProcessGroup"}, "named": {"NamedGloo"}, "gloo": {"ProcessGroup", "ProcessGroupGloo"}}
"""How each program is run -> the classes that its group may have. named: it says gloo, with UNISONO_AS=gloo."""
LIMIT_S, END_S = 200, 40

pytestmark = [pytest.mark.timeout(3 * (LIMIT_S + END_S) + 20), pytest.mark.cold]


@pytest.fixture(autouse=True)
def _installed() -> None:
    """Programs that do not know the backend find it by the entry point of an installed package."""
    assert entry_points(group="torch.backends", name="unisono"), "pip install --editable . first"


def needs(*projects: str) -> pytest.MarkDecorator:
    missing = [project for project in projects if find_spec(project) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def python(*words: str | Path, **settings: str) -> tuple[int, str]:
    """Run a program; its exit status, and what it said. It gets LIMIT_S, and then END_S to end its ranks.

    Prints the seconds it has taken.
    """
    began = time.perf_counter()
    fixed = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
    environment = {**os.environ, **fixed, **settings}
    with subprocess.Popen(
        [sys.executable, *map(str, words)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as program:
        for last_word in (signal.SIGTERM, signal.SIGKILL):
            try:
                said, _ = program.communicate(timeout=LIMIT_S if last_word == signal.SIGTERM else END_S)
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, last_word)
            else:
                way = "under Gloo's name" if settings.get("UNISONO_AS") else "as it is"
                seconds, last = time.perf_counter() - began, " ".join(Path(word).name for word in words[-4:])
                print(f"{seconds:.1f} s {way}: {last}")  # noqa: T201
                return program.returncode, said
        return program.wait(), "it did not end"


def torchrun(ranks: int, program: str | Path, *words: str | Path, **settings: str) -> tuple[int, str]:
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return python(*command, PROGRAMS / program, *words, **settings)


def results(directory: Path, ranks: int) -> list[dict[str, Any]]:
    """What each rank of a program has written."""
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(ranks)]


def same(
    program: str, directory: Path, ranks: int, ways: Sequence[str] = tuple(GROUPS), *, launched: bool = True
) -> list[dict[str, Any]]:
    """What each rank computes, in each of these ways; with Gloo, the last, it must be the same, to the last bit."""
    found = []
    for way in ways:
        where = directory / way
        where.mkdir()
        words, settings = ("gloo" if way == "named" else way, where), {"UNISONO_AS": "gloo"} if way == "named" else {}
        status, said = (
            torchrun(ranks, program, *words, **settings) if launched else python(PROGRAMS / program, *words, **settings)
        )
        assert status == 0, said
        found.append(results(where, ranks))
        assert {result.pop("group") for result in found[-1]} <= GROUPS[way]
    assert all(one == found[-1] for one in found)
    return found[0]


@needs("accelerate")
@pytest.mark.parametrize("script", ["test_script", "test_sync", "test_ops"])
def test_accelerate_passes_its_own_tests(script: str) -> None:
    status, said = torchrun(2, "with_backend.py", "unisono", f"accelerate.test_utils.scripts.{script}")
    assert status == 0, said


@needs("accelerate")
@pytest.mark.parametrize("way", ["named", "gloo"])
@pytest.mark.parametrize("script", ["test_script", "test_sync", "test_ops"])
def test_accelerate_launches_its_own_tests(script: str, way: str, tmp_path: Path) -> None:
    """For processes on CPUs it has the option for GPUs, and ACCELERATE_USE_CPU; with --cpu it starts one process."""
    launch = "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--main_process_port=0"
    words = PROGRAMS / "accelerate_tests.py", f"accelerate.test_utils.scripts.{script}", tmp_path
    status, said = python(*launch, *words, UNISONO_AS="gloo" if way == "named" else "")
    assert status == 0, said
    for rank in results(tmp_path, 2):
        assert rank.pop("group") in GROUPS[way]
        assert rank == {"processes": 2, "kind": "MULTI_CPU"}


@needs("accelerate")
def test_ranks_that_part_ways_end_with_an_error() -> None:
    """On CPUs accelerate does not join ranks with different numbers of batches; its test of that hangs with Gloo."""
    name = "accelerate.test_utils.scripts.test_distributed_data_loop"
    status, said = torchrun(2, "with_backend.py", "unisono", name)
    assert status != 0
    assert "MismatchError" in said, said
    assert "barrier" in said, said


@needs("lightning")
def test_lightning(tmp_path: Path) -> None:
    ranks = same("lightning_training.py", tmp_path, 2, launched=False)
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert ranks[0]["losses"] != ranks[1]["losses"]  # each has data of its own
    assert ranks[0]["accuracies"][-1] > 0.9


@needs("transformers", "accelerate")
def test_transformers(tmp_path: Path) -> None:
    for rank in same("transformers_training.py", tmp_path, 2):
        assert rank["wrapped"] == "DistributedDataParallel"
        assert rank["losses"][-1] < 0.8 * rank["losses"][0]
        assert rank["evaluations"][1] < rank["evaluations"][0]
        assert rank["predicted"] == [97, 16, 32]
    assert len(list(tmp_path.glob("unisono/checkpoint-*/model.safetensors"))) == 2


@needs("torchmetrics")
def test_torchmetrics(tmp_path: Path) -> None:
    for rank in same("metrics.py", tmp_path, 3):
        assert rank["mine"] == rank["whole"]  # as if one process had seen all examples
        assert rank["mean"] == pytest.approx(8 / 6)  # none of 0, two of 1, three of 2


@needs("transformers", "accelerate")
def test_transformers_splits_a_model(tmp_path: Path) -> None:
    for rank in same("tensor_parallel.py", tmp_path, 2):
        assert rank["rows"] == 64  # each has one half
        assert len(rank["said"][0]) == 36


@needs("deepspeed")
def test_deepspeed(tmp_path: Path) -> None:
    for rank in same("deepspeed_training.py", tmp_path, 2, ["named", "gloo"]):
        assert rank["processes"] == 2
        assert all(losses[-1] < losses[0] for losses in rank["losses"])


@needs("torchft")
def test_torchft(tmp_path: Path) -> None:
    ranks = same("torchft_groups.py", tmp_path, 3, ["named", "gloo"])
    assert [sorted(rank) for rank in ranks] == [["0", "1", "2"], ["0", "1", "2"], ["0", "2"]]


BEFORE = """
import json, time
from pathlib import Path

def end():
    time.sleep(0.05)
    return float(Path("end").read_text())

"""
AFTER = """
backend = manager._pg.parent._get_backend(torch.device("cpu"))
print(json.dumps([type(backend).__name__, *(weight.tolist() for weight in model.parameters())]), flush=True)
"""


@needs("torchft")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_torchft_training_outlives_replicas(tmp_path: Path, how: int) -> None:
    """The guide's program. Replicas go on without one that fails, newcomers join, and all end with the same weights."""
    from torchft.coordination import LighthouseServer

    program = next(block.text for block in blocks(ROOT / "docs" / "guides" / "recovery.md") if "torchft" in block.text)
    assert "< 1000:" in program
    (tmp_path / "train.py").write_text(f"{BEFORE}{program.replace('< 1000:', '< end():')}{AFTER}")
    (tmp_path / "end").write_text("inf")
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, heartbeat_timeout_ms=1000)
    settings = {"OMP_NUM_THREADS": "1", "UNISONO_AS": "gloo", "TORCHFT_LIGHTHOUSE": lighthouse.address()}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=2", "train.py"]

    def said(replica: int) -> list[str]:
        return (tmp_path / f"{replica}").read_text().splitlines()

    def go_on(replicas: Iterable[int], count: int) -> None:
        """Wait until these replicas have made steps of so many replicas."""
        begins, words = {replica: len(said(replica)) for replica in replicas}, f" of {count} replicas"
        end = time.monotonic() + 100
        while any(" ".join(said(replica)[begin:]).count(words) < 5 for replica, begin in begins.items()):
            assert time.monotonic() < end, {replica: said(replica)[-30:] for replica in range(3)}
            time.sleep(0.1)

    with ExitStack() as stack:
        agents = []
        for number in range(3):
            out, environment = stack.enter_context((tmp_path / f"{number}").open("w")), {**os.environ, **settings}
            agents.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=out, stderr=out))
            stack.callback(agents[-1].wait)
            stack.callback(agents[-1].terminate)
        for number, agent in enumerate(agents[:2]):
            go_on(range(3), 3)
            victim = psutil.Process(agent.pid).children()[0]
            victim.send_signal(how)
            go_on({0, 1, 2} - {number}, 2)
            if how == signal.SIGSTOP:
                victim.kill()
        go_on(range(3), 3)
        last = next(int(line.split()[1]) for line in reversed(said(2)) if line.startswith("step "))
        (tmp_path / "new").write_text(f"{last + 20}")
        (tmp_path / "new").rename(tmp_path / "end")
        assert [agent.wait(60) for agent in agents] == [0, 0, 0]
    lighthouse.shutdown()
    ends = {said(replica)[-1] for replica in range(3)}
    assert len(ends) == 1
    assert json.loads(ends.pop())[0] in GROUPS["named"]
