"""Messages by MPI: ranks that mpirun has started exchange them, and a carrier that is aborted says so."""

from pathlib import Path

import pytest

from tests.support.mpi_launchers import LAUNCHERS, launcher, run_by
from tests.support.ports import free_port

LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}

SCRIPT = """
import sys, threading, torch
from unisono.engine.tape import LEFT
from unisono.hosts.messages import Bytes, Room, Tags, TapeRow, TapeRun, TapeWriter, lower, nap
from unisono.hosts.messages.message_program import FINAL, GIVEN, KEPT, ChunkPlace
from unisono import CATALOGUE
from unisono.engine.carrier import Lost
from unisono.engine.reducers import combine_address
from unisono.hosts.carriers.mpi_messages import MpiCarrier

carrier = MpiCarrier()
rank, size = carrier.rank, carrier.size

def places(vector, n):
    start, ends = vector.data_ptr(), [8 * (len(vector) * c // n) for c in range(n + 1)]
    return {
        ChunkPlace(0, c, where): Bytes(start + ends[c], start + ends[c + 1])
        for c in range(n) for where in (GIVEN, KEPT, FINAL)
    }

def until(condition):
    while not condition():
        nap(0)

calls = [(name, n) for name in ("circulant", "recursive_doubling") for n in (1, 1000, 300_000)]
for call, (name, elements) in enumerate(calls):
    schedule = CATALOGUE["all_reduce." + name].schedule(size)
    vector = torch.arange(elements, dtype=torch.float64) + rank
    writer = TapeWriter(carrier, Room(), (combine_address("float64", "sum", last=False), 8))
    tags = Tags(lambda number, round_, index: number * 1000 + round_ * 10 + index)
    rows = writer.leg(lower(schedule)[rank], range(size), places(vector, schedule.chunks), tags)
    run = TapeRun(carrier, [*rows, TapeRow(LEFT, (-1,))], writer.buffers)
    run.begin(call + 1)
    until(run.advance)
    run.close()
    assert vector.equal(torch.arange(elements, dtype=torch.float64) * size + sum(range(size))), vector

never = carrier.irecv((rank + 1) % size, 999_999, torch.zeros(8, dtype=torch.uint8))
threading.Timer(0.1, carrier.abort).start()
try:
    never.settle()
except Lost as lost:
    sys.stdout.write(f"rank {rank}: {lost.reason}\\n")
"""

CALLS = """
import os, sys, torch
os.environ["UNISONO_HOST_ID"] = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
import unisono

group = unisono.init()
for count in (3, 100_000):
    tensor = torch.arange(float(count)) + group.rank
    unisono.all_reduce(tensor)
    assert tensor.equal(torch.arange(float(count)) * 2 + 1), tensor
unisono.send(tensor, 1 - group.rank)
assert unisono.recv(src=1 - group.rank).equal(tensor)
sys.stdout.write(f"{group.hosts.text} by {group.span.carrier.name}\\n")
"""


@pytest.mark.long
@pytest.mark.parametrize("wheel", LAUNCHERS)
def test_calls_over_hosts(wheel: str, tmp_path: Path) -> None:
    assert _run(wheel, tmp_path, CALLS) == ["2x1 by mpi"] * 2


@pytest.mark.long
@pytest.mark.parametrize("wheel", LAUNCHERS)
def test_ranks_of_mpirun(wheel: str, tmp_path: Path) -> None:
    said = "this rank has aborted its messages"
    assert _run(wheel, tmp_path, SCRIPT) == [f"rank {rank}: {said}" for rank in range(2)]


def _run(wheel: str, folder: Path, program: str) -> list[str]:
    """What two ranks print, sorted."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    settings = {
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "UNISONO_CARRIER": "mpi",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{free_port()}",
    }
    if found := launcher(wheel):
        settings["MPI4PY_LIBMPI"] = f"{found[0].parent.parent / 'lib' / LIBRARIES[wheel]}"
    return sorted(run_by(wheel, 2, program, folder, **settings).splitlines())
