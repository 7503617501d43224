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
from collections.abc import Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

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


@needs("torchft")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_torchft_training_outlives_replicas(tmp_path: Path, how: int) -> None:
    """In the end all replicas have the same weights, the newcomers' too, and have made steps after each failure."""
    code, said = python(PROGRAMS / "torchft_train.py", "gloo", tmp_path, UNISONO_AS="gloo", HOW=f"{how:d}")
    assert code == 0, said
    failures, last = json.loads((tmp_path / "failures").read_text())
    ends = [json.loads((tmp_path / f"{number}.json").read_text()) for number in last]
    assert {end["group"] for end in ends} <= GROUPS["named"]
    assert all(end["weights"] == ends[0]["weights"] for end in ends)
    times = [at for end in ends for _, at in end["steps"]]
    for failed_at, until in zip(failures, [*failures[1:], float("inf")], strict=True):
        assert any(failed_at < at < until for at in times)
