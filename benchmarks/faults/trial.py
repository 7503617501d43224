"""One fault in one call of three ranks: what every rank sees, and whether those that are left go on."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # not in torch's __all__

import unisono
from unisono.integrations.torch import register

from ..meeting import Meeting, until
from ..reports import GLOO, OURS

DETAIL = "Gloo, DETAIL"
"""Gloo, where torch compares each call of all ranks before it is made."""

TORCHFT = "torchft"
"""Its ProcessGroupGloo, which is reconfigured through a store, without its manager and lighthouse."""

CONTENDERS = (OURS, GLOO, DETAIL, *([TORCHFT] if importlib.util.find_spec("torchft") else []))
"""Those that are installed."""

RANKS = 3
LIMIT_S = 5.0
"""The time-out that each contender is given. Gloo's default is 30 minutes, ours 5."""

CALLS = ("all_reduce", "broadcast", "send/recv", "barrier")
"""In a broadcast, and where messages are sent, it is the victim who has the data, and the others who wait."""

FAULTS = ("exit", "SIGKILL", "SIGSTOP", "longer", "shorter", "refused", "late")
"""What happens to the victim instead of its call, or in it: `longer` and `shorter` are tensors of twice and half the
size, `refused` a call whose argument raises an error, after which it goes on with the next one, `late` is 1 s."""

DEADLY = ("exit", "SIGKILL", "SIGSTOP")
"""After these the victim is not there any more."""

_COUNT, _LATE_S, _MOST_S = 25_000, 1.0, 60.0


class Trial(NamedTuple):
    """seen: what each rank has told, by number; a rank that did not come to its end is missing.

    ended: by rank, in words, how its function has failed; printed: the last line that it has printed.
    """

    contender: str
    fault: str
    call: str
    victim: int
    seen: dict[int, dict[str, Any]]
    ended: dict[int, str]
    printed: dict[int, str]


def possible(fault: str, call: str) -> bool:
    """A barrier has no size, and no argument that could be wrong."""
    return call != "barrier" or fault not in ("longer", "shorter", "refused")


def trial(contender: str, fault: str, call: str, victim: int) -> Trial:
    """Run it on new processes. They meet at a store that none of them holds, so that none takes it along."""
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        arguments = folder, contender, fault, call, victim, store.port
        ends = unisono.run(_live, RANKS, args=arguments, timeout_s=60, return_exceptions=True)
        seen = Meeting(folder).told("end", range(RANKS))
        ended = {rank: str(end.__cause__) for rank, end in enumerate(ends) if isinstance(end, unisono.RankFailed)}
        said = {rank: Path(folder, f"{rank}.out").read_text(errors="replace").split("\n") for rank in range(RANKS)}
    printed = {rank: next((line for line in reversed(lines) if line), "") for rank, lines in said.items()}
    return Trial(contender, fault, call, victim, seen, ended, printed)


class _Contender:
    """A backend of `dist`, or torchft's process group, which `dist` takes, too. group: None for the default one."""

    def __init__(self, name: str, rank: int, port: int) -> None:
        self._name, self._rank, self._port, self._limit = name, rank, port, timedelta(seconds=LIMIT_S)
        self.group: Any = None
        self._start("first", range(RANKS))

    def _start(self, prefix: str, members: Sequence[int]) -> None:
        """Make a group of these ranks, which meet under this prefix of the store."""
        rank, size = members.index(self._rank), len(members)
        if self._name == TORCHFT:
            torchft: Any = importlib.import_module("torchft.process_group")
            self.group = self.group or torchft.ProcessGroupGloo(self._limit)
            address = f"127.0.0.1:{self._port}/{prefix}"
            if hasattr(torchft, "reconfigure_with_store"):
                torchft.reconfigure_with_store(self.group, address, rank, size, self._limit)
            else:  # torchft 0.2
                self.group.configure(address, str(self._rank), rank, size)
            return
        if self._name == OURS:
            register()  # torch does it by itself where the package is installed
        elif self._name == DETAIL:
            c10d.set_debug_level(c10d.DebugLevel.DETAIL)
        store = PrefixStore(prefix, TCPStore("127.0.0.1", self._port, None, False, self._limit))
        backend = "unisono" if self._name == OURS else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=self._limit)

    def go_on(self, left: Sequence[int]) -> None:
        """Make a group of these ranks; each of them calls this."""
        if self._name == OURS and len(left) < RANKS:
            dist.shrink_group([rank for rank in range(RANKS) if rank not in left])
            return
        if self._name != TORCHFT:
            dist.destroy_process_group()
        self._start("again", left)


def _live(folder: str, name: str, fault: str, call: str, victim: int, port: int) -> None:
    """One rank of a trial: three rounds of the call, the second one with the fault."""
    me = unisono.get_rank()
    out = os.open(f"{folder}/{me}.out", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    meeting = Meeting(folder)
    pids = _hear(meeting, "pid", os.getpid(), dict.fromkeys(range(RANKS), 0))
    contender = _Contender(name, me, port)
    player = _Player(contender, call, me, victim, meeting)
    player.play(1)
    _hear(meeting, "ready", None, pids)
    if me == victim and fault == "late":
        time.sleep(_LATE_S)
    rounds = [player.play(2, fault if me == victim else "")]
    if fault not in DEADLY:
        rounds.append(player.play(3))
    alive = {rank: pid for rank, pid in pids.items() if rank != victim or fault not in DEADLY}
    heard = _hear(meeting, "called", rounds, alive)
    same = len(heard) == RANKS and all(theirs[-1]["data"] == "right" for theirs in heard.values())
    end: dict[str, Any] = {"rounds": rounds, "same group": same}
    if not same:
        began = time.monotonic()
        try:
            contender.go_on(sorted(heard))
            tensor = torch.full((_COUNT,), 2.0**me)
            dist.all_reduce(tensor, group=contender.group)
            right = bool((tensor == sum(2.0**rank for rank in heard)).all())
            end |= {"new group": time.monotonic() - began} if right else {"refusal": "wrong data"}
        except Exception as error:  # noqa: BLE001  this one, too, has its own classes
            end["refusal"] = f"{type(error).__name__}: {error}"
    _hear(meeting, "end", end, {rank: pids[rank] for rank in heard})
    if fault == "SIGSTOP" and me == min(heard):
        os.kill(pids[victim], signal.SIGKILL)


def _hear(meeting: Meeting, stage: str, value: Any, pids: Mapping[int, int]) -> dict[int, Any]:
    """Tell, then wait until each of these ranks has told, or has ended; what they told."""
    meeting.tell(f"{stage} {unisono.get_rank()}", value)
    until(lambda: all(meeting.has(f"{stage} {rank}") or _has_ended(pid) for rank, pid in pids.items()), _MOST_S)
    return meeting.told(stage, pids)


def _has_ended(pid: int) -> bool:
    try:
        return bool(pid) and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


class _Player:
    """Makes the calls of one rank, each with data of its own, and looks at what came."""

    def __init__(self, contender: _Contender, call: str, me: int, victim: int, meeting: Meeting) -> None:
        self._group, self._call, self._me, self._victim = contender.group, call, me, victim
        self._meeting = meeting

    def play(self, number: int, fault: str = "") -> dict[str, Any]:
        if fault == "exit":
            os._exit(3)
        if fault in DEADLY:
            os.kill(os.getpid(), getattr(signal, fault))
        count = {"longer": 2 * _COUNT, "shorter": _COUNT // 2}.get(fault, _COUNT)
        tensor = torch.full((count,), 10.0 * number + self._me)
        if self._me == self._victim and fault != "refused":
            self._meeting.tell(f"entered {number}")
        began = time.monotonic()
        try:
            self._make(tensor, refused=fault == "refused")
        except Exception as error:  # noqa: BLE001  each contender has its own classes
            text = str(error)
            return {
                "data": "error", "seconds": time.monotonic() - began, "error": type(error).__name__,
                "names": bool(re.search(rf"\brank {self._victim}\b", text, re.IGNORECASE)), "text": text,
            }  # fmt: skip
        return {"data": "right" if self._right(tensor, number) else "wrong", "seconds": time.monotonic() - began}

    def _make(self, tensor: torch.Tensor, *, refused: bool) -> None:
        """The call. refused: with an argument that raises an error, such as an operation that floats do not have."""
        group, victim = self._group, self._victim
        if refused and self._call != "all_reduce":
            tensor = tensor.to_sparse()
        if self._call == "all_reduce":
            dist.all_reduce(tensor, dist.ReduceOp.BAND if refused else dist.ReduceOp.SUM, group)
        elif self._call == "broadcast":
            dist.broadcast(tensor, group=group, group_src=victim)
        elif self._call == "barrier":
            dist.barrier(group)
        elif self._me != victim and group:
            group.recv([tensor], victim, 0).wait()  # dist.recv would look for the victim's rank in the world
        elif self._me != victim:
            dist.recv(tensor, victim)
        else:
            for rank in range(RANKS):
                if rank != victim:
                    dist.send(tensor, group=group, group_dst=rank)

    def _right(self, tensor: torch.Tensor, number: int) -> bool:
        """Is it what this call should give? A barrier must not end before the victim has come."""
        if not self._meeting.has(f"entered {number}"):
            return False
        if self._call == "barrier":
            return True
        one = 10.0 * number
        expected = sum(one + rank for rank in range(RANKS)) if self._call == "all_reduce" else one + self._victim
        return tensor.numel() == _COUNT and bool((tensor == expected).all())
