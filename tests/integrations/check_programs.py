"""Programs of other projects, unchanged, on this backend and under Gloo's name; they compute what Gloo makes of it.

`make .venv/ready-integrations` installs the projects. Then `python -m pytest` with the path of this
file runs it. pytest does not find it by its name: all other tests do without these projects.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.markdown import ROOT, blocks
from tests.support.programs import run_python

PROGRAM = Path(__file__).parent / "programs" / "of_projects.py"
GROUPS = {"unisono": {"UnisonoProcessGroup"}, "named": {"NamedGloo"}, "gloo": {"ProcessGroup", "ProcessGroupGloo"}}
"""How each program is run -> the classes that its group may have. named: it says gloo, with UNISONO_AS=gloo."""
FIXED = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "ACCELERATE_USE_CPU": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # else Ray leaves a token in the home directory
}
LIMIT_S, END_S = 200, 40

pytestmark = [pytest.mark.timeout(3 * (LIMIT_S + END_S) + 20), pytest.mark.cold]


@pytest.fixture(autouse=True)
def _installed() -> None:
    """Programs that do not know the backend find it by the entry point of an installed package."""
    assert entry_points(group="torch.backends", name="unisono"), "pip install --editable . first"


def needs(*projects: str) -> pytest.MarkDecorator:
    missing = [project for project in projects if find_spec(project) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


LAUNCHERS: dict[str, tuple[str, ...]] = {
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=RANKS"),
    # On CPUs accelerate has the option for GPUs, with ACCELERATE_USE_CPU; with --cpu it starts one process.
    "accelerate": ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=RANKS", "--main_process_port=0"),
    "itself": (),
}


def run(
    program: str, directory: Path, way: str, *words: str, ranks: int = 2, launcher: str = "torchrun"
) -> tuple[int, str, list[dict[str, Any]]]:
    """Run a program in one of `GROUPS`; its exit status, what it said, and, if it ended well, what each rank found."""
    launch = [word.replace("RANKS", f"{ranks}") for word in LAUNCHERS[launcher]]
    settings = {**os.environ, **FIXED, **({"UNISONO_AS": "gloo"} if way == "named" else {})}
    limit = "timeout", f"--kill-after={END_S}", f"{LIMIT_S}"  # launchers end their ranks meanwhile
    given: tuple[Any, ...] = PROGRAM, program, "gloo" if way == "named" else way, directory, *words
    done = subprocess.run(
        [*limit, sys.executable, *launch, *given], env=settings, capture_output=True, text=True, check=False
    )
    status, said = done.returncode, done.stdout + done.stderr
    found = [] if status else [json.loads((directory / f"{rank}.json").read_text()) for rank in range(ranks)]
    assert {result.pop("group") for result in found} <= GROUPS[way]
    return status, said, found


@needs("accelerate")
@pytest.mark.parametrize("way", GROUPS)
@pytest.mark.parametrize("script", ["test_script", "test_sync", "test_ops"])
def test_accelerate_passes_its_own_tests(script: str, way: str, tmp_path: Path) -> None:
    module = f"accelerate.test_utils.scripts.{script}"
    status, said, found = run("accelerate", tmp_path, way, module, launcher="accelerate")
    assert status == 0, said
    assert found == [{"processes": 2, "kind": "MULTI_CPU"}] * 2


@needs("accelerate")
def test_ranks_that_part_ways_end_with_an_error(tmp_path: Path) -> None:
    """On CPUs accelerate does not join ranks with different numbers of batches; its test of that hangs with Gloo."""
    module = "accelerate.test_utils.scripts.test_distributed_data_loop"
    status, said, _ = run("accelerate", tmp_path, "unisono", module)
    assert status != 0
    assert "MismatchError" in said, said
    assert "barrier" in said, said


@pytest.mark.parametrize(
    ("program", "ranks", "launcher", "ways"),
    [
        pytest.param("deepspeed", 2, "torchrun", ["named", "gloo"], marks=needs("deepspeed")),
        pytest.param("lightning", 2, "itself", GROUPS, marks=needs("lightning")),
        pytest.param("ray_train", 2, "itself", GROUPS, marks=needs("ray", "pyarrow")),
        pytest.param("split", 2, "torchrun", GROUPS, marks=needs("transformers", "accelerate")),
        pytest.param("torchft", 3, "torchrun", ["named", "gloo"], marks=needs("torchft")),
        pytest.param("torchmetrics", 3, "torchrun", GROUPS, marks=needs("torchmetrics")),
        pytest.param("trainer", 2, "torchrun", GROUPS, marks=needs("transformers", "accelerate")),
    ],
)
def test_programs_compute_the_same(program: str, ranks: int, launcher: str, ways: list[str], tmp_path: Path) -> None:
    """Each rank computes in each of these ways what it does with Gloo, the last one, to the last bit."""
    found = []
    for way in ways:
        (tmp_path / way).mkdir()
        status, said, results = run(program, tmp_path / way, way, ranks=ranks, launcher=launcher)
        assert status == 0, said
        found.append(results)
    assert all(one == found[-1] for one in found)


@needs("ray")
def test_recipe_for_actors_of_ray(tmp_path: Path) -> None:
    """The program of docs/torch.md."""
    (recipe,) = (block for block in blocks(ROOT / "docs" / "torch.md") if "import ray" in block.text)
    (tmp_path / "recipe.py").write_text(recipe.text)
    done = run_python(tmp_path / "recipe.py", env={**os.environ, **FIXED}, timeout=LIMIT_S, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == json.loads(recipe.output or "")


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
