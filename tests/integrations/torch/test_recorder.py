"""torch's flight recorder, in processes of their own: it reads its settings once."""

import json
from pathlib import Path

import pytest
from torch.distributed import distributed_c10d

from tests.support.programs import Python, free_port, place, run_python

pytestmark = pytest.mark.skipif(
    not hasattr(distributed_c10d, "_maybe_attach_flight_recorder"), reason="torch attaches its recorder from 2.15 on"
)

BACKENDS = {"unisono": {}, "gloo": {"UNISONO_AS": "gloo"}}
SIZE = 3
PROGRAM = """
import json, sys, time
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
import unisono

backend, scene, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
dist.init_process_group(backend, timeout=timedelta(seconds=60))
me, size = dist.get_rank(), dist.get_world_size()
hook = c10d.FlightRecorderHook.attach(dist.group.WORLD, list(range(size))) if scene == "attached" else None

def dump(**how):
    found = json.loads(c10d._dump_fr_trace_json(backend=backend, **how)).get("entries", [])
    return [[one["profiling_name"], one["retired"], one["input_sizes"], one["input_dtypes"], one["timeout_ms"],
             one["collective_seq_id"], one["p2p_seq_id"], one["process_group"][1]] for one in found]

tensor = torch.ones(4)
dist.all_reduce(tensor)
if scene == "missing":
    if me != 1:
        dist.barrier()
        dist.group.WORLD.set_timeout(timedelta(seconds=1))
        try:
            dist.all_gather_into_tensor(torch.empty(4 * size), tensor)
        except dist.DistBackendError:
            sys.exit()  # the file has been written
    dist.barrier()
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < size - 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    c10d._dump_fr_trace_file(me, includeStackTraces=True, backend=backend)
elif scene == "mismatch":
    try:
        if me == 1:
            dist.broadcast(tensor, 0)
        else:
            dist.all_reduce(tensor)
    except unisono.MismatchError:
        c10d._dump_fr_trace_file(me, includeStackTraces=True, backend=backend)
else:
    both = dist.new_group([0, 1], timeout=timedelta(seconds=7), group_desc="both")
    if me < 2:
        dist.all_gather_into_tensor(torch.empty(4, dtype=torch.int16), torch.ones(2, dtype=torch.int16), group=both)
        dist.send(tensor, 1) if me == 0 else dist.recv(tensor, 0)
    dist.all_reduce(tensor, async_op=True).wait()
    if me == 0:
        print(json.dumps(dump()))
        c10d._reset_fr_trace(backend=backend)
        print(json.dumps(dump()))
    dist.barrier()
"""


def run(python: Python, scene: str, folder: Path, backend: str, **variables: str) -> list[str]:
    port, given = free_port(), {"TORCH_FR_DUMP_TEMP_FILE": f"{folder}/trace_", **BACKENDS[backend], **variables}
    ranks = [python("-c", PROGRAM, backend, scene, folder, **place(rank, SIZE, port), **given) for rank in range(SIZE)]
    ends = [rank.communicate(timeout=100) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * SIZE, ends
    return ends[0][0].splitlines()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scene", ["usual", "attached"])
def test_entries(python: Python, tmp_path: Path, scene: str, backend: str) -> None:
    variables = {"TORCH_FR_BUFFER_SIZE": "100"} if scene == "usual" else {}
    entries, left = map(json.loads, run(python, scene, tmp_path, backend, **variables))
    usual = [
        ["unisono:all_reduce", True, [[4]], ["Float"], 60000, 1, 0, "default_pg"],
        ["unisono:send 0->1", True, [[4]], ["Float"], 60000, 1, 1, "default_pg"],
        ["unisono:all_reduce", True, [[4]], ["Float"], 60000, 2, 1, "default_pg"],
    ]
    if scene == "usual":
        usual.insert(1, ["unisono:_all_gather_base", True, [[2]], ["Short"], 7000, 1, 0, "both"])
    assert entries == usual
    assert left == []


@pytest.mark.parametrize("variables", [{}, {"TORCH_FR_BUFFER_SIZE": "0"}], ids=len)
def test_nothing_is_recorded_unasked(python: Python, tmp_path: Path, variables: dict[str, str]) -> None:
    assert run(python, "usual", tmp_path, "unisono", **variables) == ["[]", "[]"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("scene", "words"),
    [("missing", ["missing ranks: {1}"]), ("mismatch", ["Culprit rank 1", "COLLECTIVE_TYPE_MISMATCH", "broadcast"])],
)
def test_torchfrtrace_finds_the_culprit(
    python: Python, tmp_path: Path, scene: str, words: list[str], backend: str
) -> None:
    run(python, scene, tmp_path, backend, TORCH_FR_BUFFER_SIZE="100")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"trace_{rank}" for rank in range(SIZE)]
    done = run_python("-m", "torch.distributed.flight_recorder.fr_trace", tmp_path, "--prefix", "trace_", check=True)
    assert all(word in done.stdout + done.stderr for word in words), done.stdout + done.stderr
    assert "<string>" in done.stdout + done.stderr  # the program's line
