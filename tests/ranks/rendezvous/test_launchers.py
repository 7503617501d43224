"""Which rank am I? Arguments and environment in, a frozen answer out.

Processes that mpirun or srun has started form one group, or are told why not; never a group of one each.
"""

import importlib.metadata
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.programs import Python, free_port, place
from tests.support.waiting import until
from unisono.base.errors import ArgumentError
from unisono.ranks.group.initialize import meet_in_rounds
from unisono.ranks.rendezvous.launchers import detect

LAUNCHERS = {"openmpi": "ompirun_wrapper", "mpich": "mpiexec.hydra"}
"""Wheel -> its launcher by the name that only it has: both wheels own a file `mpirun`."""


def run_by(wheel: str, ranks: int, program: str, folder: Path, **environment: str) -> str:
    """What a program prints on ranks of this host that a wheel's launcher has started. Skips the test without it."""
    try:
        files = importlib.metadata.files(wheel) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"the wheel {wheel} is not installed")
    mpirun = next(Path(str(file.locate())).resolve() for file in files if file.name == LAUNCHERS[wheel])
    environment |= {"OMP_NUM_THREADS": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    environment |= {"OPAL_PREFIX": str(mpirun.parent.parent)}
    for tool in ("OMPI", "PRTE"):  # root is allowed, as in containers
        environment |= dict.fromkeys((f"{tool}_ALLOW_RUN_AS_ROOT", f"{tool}_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    script = folder / "script.py"
    script.write_text(program)
    words, environment = [f"{mpirun}", "-n", f"{ranks}", sys.executable, f"{script}"], {**os.environ, **environment}
    done = subprocess.run(words, capture_output=True, text=True, timeout=110, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


MEET = {"MASTER_ADDR": "node-a", "MASTER_PORT": "41001"}
TORCHRUN = {
    **MEET,
    "RANK": "2",
    "WORLD_SIZE": "5",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RUN_ID": "job7",
    "TORCHELASTIC_RESTART_COUNT": "3",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-host-77@1", "PMIX_RANK": "1",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "3",
    "SLURM_NNODES": "1", "SLURM_NODEID": "0",
}  # fmt: skip
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
NODES = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[07-08]"}
STEP = {**SLURM, **NODES}
ALLOCATION = {"SLURM_JOB_ID": "42", "SLURM_NTASKS": "8", "SLURM_NNODES": "2"}
ON_HOSTS = {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4"}, {**MPICH, "PMI_SIZE": "4"}
PLACE = {"RANK": "3", "WORLD_SIZE": "4"}
RAY = {**MEET, **PLACE, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"}

FOUND = [
    ({"PATH": "/bin"}, {}, {"rank": 0, "size": 1}),
    ({**MEET, **PLACE}, {}, {"rank": 3, "size": 4, "store_runs": False, "port": 41001}),
    (MEET, {"rank": 1, "size": 3}, {"rank": 1, "size": 3, "port": 41001}),
    (TORCHRUN, {"rank": 2, "size": 5}, {"rank": 2, "size": 5, "address": "node-a", "port": 41001, "store_runs": True}),
    (TORCHRUN, {}, {"prefix": "unisono/job7/3", "name": "torchrun job7/3", "stale": False}),
    *(({**TORCHRUN, "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": count}, {},  # each agent has its own count
       {"prefix": "unisono/job7", "name": "torchrun job7", "stale": True}) for count in "01"),
    ({"RANK": "0", "WORLD_SIZE": "1"}, {}, {"port": 0}),
    ({}, {"rank": 0, "size": 1}, {"rank": 0, "size": 1}),
    (RAY, {}, {"rank": 3, "size": 4, "address": "node-a", "port": 41001}),
    ({**SLURM, **OPEN_MPI, **MEET, **PLACE}, {}, {"rank": 3, "size": 4, "port": 41001}),
    (SLURM, {"rank": 1, "size": 2}, {"job": "Slurm 42.3"}),
    ({**SLURM, "RANK": "1", "WORLD_SIZE": "2"}, {}, {"job": "Slurm 42.3"}),
    *((environ, {}, {"rank": 1, "size": 2, "job": job}) for environ, job in (
        (OPEN_MPI, "Open MPI prterun-host-77@1"),
        ({**ALLOCATION, **OPEN_MPI}, "Open MPI prterun-host-77@1"),
        (SLURM, "Slurm 42.3"),
        ({**SLURM, "PMI_RANK": "1", "PMI_SIZE": "2"}, "Slurm 42.3"),  # srun --mpi=pmi2
        ({**SLURM, "PMIX_RANK": "1"}, "Slurm 42.3"),  # srun --mpi=pmix
        ({**SLURM, **OPEN_MPI}, "Open MPI prterun-host-77@1"),  # mpirun in a step of Slurm
    )),
    *((environ, {}, {"rank": 0, "size": 1, "job": ""}) for environ in (
        ALLOCATION,
        {**ALLOCATION, "SLURM_PROCID": "0", "SLURM_NODEID": "0"},  # a batch script's own shell
        {**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"},  # an interactive step
        {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
    )),
    *(({**environ, **MEET}, {}, {"address": "node-a", "port": 41001, "job": "", "by_mpi": False})
      for environ in (SLURM, STEP, OPEN_MPI, *ON_HOSTS)),
    *((environ, {}, {"rank": 1, "size": 4, "by_mpi": True, "job": ""}) for environ in ON_HOSTS),
    *(({**STEP, "SLURM_STEP_NODELIST": nodes}, {}, {"rank": 1, "size": 2, "address": first, "job": ""})
      for nodes, first in (
        ("gpu[07-08]", "gpu07"), ("gpu[3,5-9],login1", "gpu3"), ("login1,gpu[07-08]", "login1"), ("alone", "alone"),
        ("rack[1-2]-gpu[03-05,9]", "rack1-gpu03"), ("n1.example.org,n2.example.org", "n1.example.org"),
    )),
    *((environ, {}, {"name": name}) for environ, name in (  # the same on all ranks of a job
        ({**MEET, "RANK": "0", "WORLD_SIZE": "2"}, ""),
        ({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"}, "torchrun job7/3"),
        ({**MEET, **STEP}, "Slurm 42.3"),
        ({**MEET, **STEP, "RANK": "0", "WORLD_SIZE": "2"}, "Slurm 42.3"),
        ({**MEET, **STEP, "RANK": "0", "WORLD_SIZE": "4"}, ""),  # one srun for each node
        ({**MEET, **MPICH, "MPI_LOCALNRANKS": "1"}, "MPICH"),  # it has a name on each host
        ({**MEET, **OPEN_MPI, "PMIX_NAMESPACE": "x@1"}, "Open MPI x@1"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("environ", "arguments", "found"), FOUND)
def test_what_arguments_and_environment_say(environ, arguments, found):
    launch = detect(environ, **arguments)
    assert {name: getattr(launch, name) for name in found} == found
    assert launch.why


REFUSED = [
    ({}, {"rank": 1}, "both or neither"),
    ({}, {"size": 2}, "both or neither"),
    (TORCHRUN, {"rank": 1, "size": 5}, "rank: got 1, .* RANK=2"),
    (TORCHRUN, {"rank": 2, "size": 4}, "size: got 4, .* WORLD_SIZE=5"),
    ({}, {"rank": 0, "size": 0}, "less than the size"),
    ({"MASTER_ADDR": "node-a"}, {"rank": 0, "size": 2}, "MASTER_PORT"),
    (SLURM, {"rank": 0, "size": 4}, "MASTER_ADDR"),
    *((environ, {}, words) for environ, words in (
        ({"RANK": "0"}, "WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "RANK is not"),
        ({**TORCHRUN, "RANK": "two"}, "RANK: got 'two'"),
        ({**TORCHRUN, "MASTER_PORT": "http"}, "MASTER_PORT: got 'http'"),
        ({**TORCHRUN, "MASTER_PORT": "65536"}, "MASTER_PORT: got 65536"),
        ({**TORCHRUN, "RANK": "5"}, "less than the size"),
        ({**TORCHRUN, "RANK": "-1"}, "at least 0"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({**STEP, "MASTER_ADDR": "node-a"}, "MASTER_ADDR=node-a is set, but MASTER_PORT is not"),
        ({**STEP, "MASTER_PORT": "41001"}, "MASTER_PORT=41001 is set, but MASTER_ADDR is not"),
        ({**SLURM, "SLURM_STEP_NUM_NODES": "2"}, "on which host rank 0 runs"),
        ({**SLURM, **NODES, "SLURM_PROCID": "0", "SLURM_NODEID": "1"}, "on which host rank 0 runs. Set MASTER_ADDR"),
        ({**SLURM, "SLURM_PROCID": "2"}, "less than the size"),
        ({name: value for name, value in OPEN_MPI.items() if "PMIX" not in name}, "where .* meet. Start .* torchrun"),
        (MPICH, "MPICH has set PMI_RANK=1 and PMI_SIZE=2, but .* where these processes meet"),
        ({**MPICH, **SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, "where these processes meet"),
        ({"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"}, "MVAPICH2 .* where these processes meet"),
        ({"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2"}, "Flux .* where these processes meet"),
        ({"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "2"}, "jsrun .* where these processes meet"),
        ({"PMIX_RANK": "0", "PMIX_NAMESPACE": "x"}, "PMIX_RANK=0, but no variable has the number"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "many"}, "OMPI_COMM_WORLD_SIZE: got 'many'"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("environ", "arguments", "words"), REFUSED)
def test_contradictions_are_refused(environ, arguments, words):
    """Also ranks that cannot meet."""
    with pytest.raises(ArgumentError, match=words):
        detect(environ, **arguments)


SCRIPT = """
import sys, torch, unisono
for _ in range(2):
    group = unisono.init(timeout_s=60)
    total = torch.full((3,), 10.0 ** group.rank)
    unisono.all_reduce(total)
    sys.stdout.write(f"rank {group.rank} on {group.hosts.text}: {total.tolist()}\\n")
    unisono.shutdown()
"""
OVER_HOSTS = """
import os
number = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
for name in {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"} & {*os.environ}:
    os.environ[name] = "1"
os.environ["UNISONO_HOST_ID"] = str(number % 2)
"""
ABI = {"openmpi": {"MPI4PY_MPIABI": "openmpi"}, "mpich": {}}  # mpi4py's wheel serves both, and takes MPICH unless told


def expect_groups(said: str, size: int, hosts: str) -> None:
    total = [sum(10.0**rank for rank in range(size))] * 3
    assert sorted(said.splitlines()) == [f"rank {rank} on {hosts}: {total}" for rank in sorted([*range(size)] * 2)]


@pytest.mark.sampled
@pytest.mark.parametrize(("size", "hosts"), [(2, "2"), (3, "3"), (3, "2+1 (0 2 | 1)")])
@pytest.mark.parametrize("wheel", LAUNCHERS)
def test_mpirun(wheel, size, hosts, tmp_path):
    """As if on two hosts, too; that they are one machine, the address of rank 0's store is told by MPI all the same."""
    over_hosts = "+" in hosts
    if over_hosts:
        pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    expect_groups(run_by(wheel, size, OVER_HOSTS * over_hosts + SCRIPT, tmp_path, **ABI[wheel]), size, hosts)


def test_srun(python):
    size, processes = 3, []
    for rank in reversed(range(size)):  # rank 0 comes last
        slurm = {**SLURM, "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(size), "SLURM_NTASKS": "64",
                 "SLURM_JOB_ID": f"{os.getpid()}"}  # fmt: skip
        processes.append(python("-c", SCRIPT, **slurm))
    said = [process.communicate(timeout=110) for process in processes]
    expect_groups("".join(out for out, _ in said), size, "3")


def test_slurm_steps_have_ports_of_their_own():
    first, second, later = (
        detect({**STEP, "SLURM_PROCID": rank, "SLURM_STEP_ID": step})
        for rank, step in (("0", "3"), ("1", "3"), ("1", "4"))
    )
    assert first.port == second.port in range(10_000, 30_000)
    assert first.name == second.name
    assert (later.port, later.name) != (first.port, first.name)


def test_missing_mpi4py_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ArgumentError, match=r"mpi4py.* is missing .* set MASTER_ADDR"):
        meet_in_rounds(detect(MPICH | {"PMI_SIZE": "4"}), time.monotonic() + 1.0)


def test_taken_port_names_the_other_job(python: Python) -> None:
    port, program = free_port(), "import unisono; unisono.init(timeout_s=100)"
    first = python("-c", program, TORCHELASTIC_RUN_ID="a", **place(0, 3, port))
    with socket.socket() as probe:
        until(lambda: probe.connect_ex(("127.0.0.1", port)) == 0)
    _, said = python("-c", program, TORCHELASTIC_RUN_ID="b", **place(0, 3, port)).communicate(timeout=100)
    assert "ArgumentError: rank 0 cannot listen at" in said
    assert f"MASTER_ADDR=127.0.0.1, MASTER_PORT={port}: job 'torchrun a/0'" in said
    assert f"process {first.pid}" in said
