"""How torch comes to know the backend: by itself, once the package is installed, and at no price."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch.distributed as dist

import unisono
from tests.support.programs import Python, free_port, place, run_python
from unisono.engine.rank import warm_up
from unisono.integrations.torch import register
from unisono.ranks.rendezvous.identity import HOST_ID

ROOT = Path(__file__).parents[3]

SCRIPT = """
import torch
import torch.distributed as dist
import sys
loaded = sorted(name for name in sys.modules if name.startswith("unisono."))
here = "unisono.integrations.torch"
below = ["unisono.base", "unisono.base.release", "unisono.integrations"]
assert loaded == [*below, here], loaded
dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
print(dist.group.WORLD.name(), tensor.tolist())
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory with the metadata that an installation of this project leaves."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = tmp_path / f"unisono-{unisono.__version__}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: unisono\nVersion: {unisono.__version__}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return tmp_path


def run(installed: Path, *words: object, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these words, as where this project is installed."""
    paths = os.pathsep.join([str(installed), str(Path(unisono.__file__).parent.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, **settings}
    return run_python(*words, env=environment)


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize(
    ("backend", "environment"), [('"unisono"', {}), ('"UNISONO"', {}), ("None", {"UNISONO_DEFAULT": "1"})]
)
def test_no_import_is_needed(installed: Path, backend: str, environment: dict[str, str]) -> None:
    done = run(installed, "-c", SCRIPT.replace("BACKEND", backend), **environment)
    assert done.stdout == "unisono [1.0, 1.0, 1.0]\n", done.stderr


def test_call_and_variable_agree(installed: Path) -> None:
    """To import unisono imports torch, which reads the variable."""
    made = 'dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)'
    words = (
        f'import unisono; unisono.answer_to("gloo"); import torch.distributed as dist; {made}; print(dist.group.WORLD)'
    )
    done = run(installed, "-c", words, UNISONO_AS="gloo")
    assert "of unisono (UNISONO_AS=gloo)" in done.stdout, done.stderr
    assert done.stderr == ""


STARTED_AGAIN = """
import os, sys, time
import torch
import torch.distributed as dist

start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if start and os.environ["RANK"] == "0":
    time.sleep(1.0)  # the other rank finds only what the first start has left at the store
dist.init_process_group("cpu:gloo")
tensor = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(tensor)
dist.all_reduce(tensor, group=dist.new_group([0, 1]))
if start == 0 and dist.get_rank() == 1:
    sys.exit(3)
dist.barrier()
os.write(1, f"start {start}: {tensor.item()} {'of unisono' in repr(dist.group.WORLD)}\\n".encode())
dist.destroy_process_group()
"""


def test_ranks_that_torchrun_starts_again(installed: Path, tmp_path: Path) -> None:
    """The agent keeps its store: what ranks of the first start have left there is not taken for the second start's."""
    program = tmp_path / "program.py"
    program.write_text(STARTED_AGAIN)
    words = "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", program
    done = run(installed, "-m", *words, UNISONO_AS="gloo")
    assert done.stdout.splitlines() == ["start 1: 6 True"] * 2, done.stderr


def test_register_twice_is_once() -> None:
    register()
    before = dict(dist.Backend._plugins)
    register()
    assert dist.Backend._plugins == before
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"


def test_error_breaks_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delitem(dist.Backend._plugins, "UNISONO", raising=False)
    monkeypatch.setattr(dist.Backend, "register_backend", None)
    register()
    assert "does not take the backend 'unisono'" in caplog.text


FIRST_CALL = """
import json, sys
import torch, torch.distributed as dist, unisono
if sys.argv[1] == "torch":
    dist.init_process_group("unisono")
    dist.all_reduce(t := torch.full((4,), dist.get_rank() + 1.0))
else:
    unisono.init()
    unisono.all_reduce(t := torch.full((4,), unisono.get_rank() + 1.0))
print(json.dumps([t.tolist(), sorted({"numba", "psutil"} & {*sys.modules})]), flush=True)
"""


@pytest.mark.cold
@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("way", ["torch", "own"])
def test_first_call_loads_no_compiler(python: Python, way: str, hosts: int) -> None:
    warm_up()  # from then on, machine code is on disk
    there, port = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, free_port()
    ranks = [
        python("-c", FIRST_CALL, way, **there, **place(rank, 2, port), **{HOST_ID: rank % hosts}) for rank in range(2)
    ]
    for rank in ranks:
        result, heavy = json.loads(rank.communicate(timeout=100)[0])
        assert result == [3.0] * 4
        assert {*heavy} <= ({"psutil"} if hosts > 1 else set()), "a carrier asks it for the addresses of the host"
