"""A scene of four ranks of Gloo or NCCL, each a program of its own: something happens to one. What do all of them say?

    python -m benchmarks.faults.scene FAULT RANK FILE BACKEND

is one rank. The ranks meet at the file. Those of NCCL share one GPU.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from threading import Thread
from typing import NamedTuple

import torch
import torch.distributed as dist

RANKS, VICTIM = 4, 3
LIMIT_S = 10.0
"""The time-out of the group."""
_COUNT, _MOST_S, _FAULT = 25_000, 90.0, "now"
ONE_GPU = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo",
           "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}  # fmt: skip
"""With NCCL_HOSTID, NCCL takes ranks that share a GPU for ranks on several hosts. torch waits four times as long as it
says here before it ends a rank of which NCCL has told an error, or the time-out is over. Its default is a minute."""
_ERROR = re.compile(r"^(\[rank\d\]: )?([\w.]*[A-Z]\w*: .*)")
"""The line of a traceback that has the error."""


def _device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raises() -> None:
    raise KeyError("no such layer")


def _stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _loops() -> None:
    while True:
        pass


def _calls_another() -> None:
    dist.broadcast(torch.ones(_COUNT, device=_device()), 0)


FAULTS: dict[str, Callable[[], None]] = {
    "is killed": _killed,
    "raises an exception": _raises,
    "is stopped": _stopped,
    "is stopped before a step of DDP": _stopped,
    "is in an endless loop": _loops,
    "makes another call": _calls_another,
}
"""What happens to the victim instead of its second call: an all_reduce, or a backward pass, where C++ code calls."""


class Said(NamedTuple):
    """A line that a rank has written, and how many seconds after the fault."""

    seconds: float
    line: str


class Seen(NamedTuple):
    """What a rank has said after the fault.

    told: the first line of the thread that watches, without the stack that may follow.
    end: the last error of its traceback, or its last line, or the signal that ended it. None: it went on for ever.
    """

    told: Said | None
    end: Said | None


def live(fault: str, rank: int, file: str, backend: str) -> None:
    """One rank: a call, another one with the fault, a barrier."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(backend, f"file://{file}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=LIMIT_S))
    ones = torch.ones(_COUNT, device=_device())
    call = _backward_pass(ones) if fault.endswith("DDP") else lambda: dist.all_reduce(ones)
    _made(call)
    if rank == VICTIM:
        print(_FAULT, flush=True)
        _made(FAULTS[fault])
    else:
        _made(call)
    dist.barrier()
    right = rank == VICTIM or bool((ones == RANKS**2).all())
    print("goes on" if right else "goes on with wrong values", flush=True)


def _made(call: Callable[[], object]) -> None:
    """Make a call and wait for the GPU, which ends it."""
    call()
    if _device() == "cuda":
        torch.cuda.synchronize()


def _backward_pass(ones: torch.Tensor) -> Callable[[], None]:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(_COUNT, 1, device=ones.device))
    return lambda: model(ones).backward()


def play(fault: str, *, watched: bool, backend: str = "gloo") -> dict[int, Seen]:
    """Run the scene until all ranks but the victim have ended. Returns what each rank says, by number."""
    with tempfile.TemporaryDirectory() as folder:
        given = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "1", "UNISONO_WATCH": str(int(watched))}
        hosts = [{**ONE_GPU, "NCCL_HOSTID": f"{rank}"} if backend == "nccl" else {} for rank in range(RANKS)]
        ranks = [_Rank([fault, f"{rank}", f"{folder}/meeting", backend], given | hosts[rank]) for rank in range(RANKS)]
        try:
            until = time.monotonic() + _MOST_S
            for rank in ranks:
                rank.wait(until if rank is not ranks[VICTIM] else time.monotonic() + 1)
        finally:
            for rank in ranks:
                rank.kill()
    began = next((said.seconds for said in ranks[VICTIM].lines if said.line == _FAULT), None)
    if began is None:
        raise RuntimeError("\n".join(f"rank {n}: {said.line}" for n, rank in enumerate(ranks) for said in rank.lines))
    return {number: rank.seen(began) for number, rank in enumerate(ranks)}


class _Rank:
    """The process of a rank, and the lines that it writes."""

    def __init__(self, arguments: list[str], given: dict[str, str]) -> None:
        command = [sys.executable, "-m", "benchmarks.faults.scene", *arguments]
        self._process = subprocess.Popen(
            command, env=given, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.lines: list[Said] = []
        self._has_ended, self._ended = False, 0.0
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.lines.append(Said(time.monotonic(), line.rstrip()))
        self._ended = time.monotonic()

    def wait(self, until: float) -> None:
        """Wait for its end, and leave it a zombie, as a launcher does that looks at its processes from time to time."""
        self._reader.join(max(0.0, until - time.monotonic()))
        self._has_ended = not self._reader.is_alive()

    def kill(self) -> None:
        self._process.kill()
        with self._process:
            self._reader.join()

    def seen(self, began: float) -> Seen:
        after = [Said(at - began, line) for at, line in self.lines if at >= began and line != _FAULT]
        told = next((said for said in after if said.line.startswith("unisono: ")), None)
        errors = [said._replace(line=found[2]) for said in after if (found := _ERROR.match(said.line))]
        own = [said for said in errors if not said.line.startswith("unisono: ")]
        if not self._has_ended:
            return Seen(told, None)
        if self._process.returncode < 0:
            name = signal.Signals(-self._process.returncode).name
            causes = [error.line for error in own[-1:]]
            causes += [said.line.strip() for said in after if "what():" in said.line]
            ended = 0.0 if name == "SIGKILL" else self._ended - began
            return Seen(told, Said(ended, ": ".join([f"ended by {name}", *causes])))
        return Seen(told, next(iter([*own[-1:], *after[-1:]]), None))


if __name__ == "__main__":
    live(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
