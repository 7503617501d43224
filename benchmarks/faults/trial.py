"""One fault in one call of three ranks: what every rank sees, and whether those that are left go on."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import unisono

from .contenders import Contender, enter

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

_COUNT, _LATE_S, _ASK_S = 25_000, 1.0, 0.001


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


def trial(contender: str, fault: str, call: str, victim: int, port: int) -> Trial:
    """Run it on new processes."""
    with tempfile.TemporaryDirectory() as folder:
        ends = unisono.run(
            _live, RANKS, args=(folder, contender, fault, call, victim, port), timeout_s=60, return_exceptions=True
        )
        files = {rank: Path(folder, f"{rank}.end") for rank in range(RANKS)}
        seen = {rank: json.loads(file.read_text()) for rank, file in files.items() if file.exists()}
        ended = {rank: str(end.__cause__) for rank, end in enumerate(ends) if isinstance(end, unisono.RankFailed)}
        said = {rank: Path(folder, f"{rank}.out").read_text(errors="replace").split("\n") for rank in range(RANKS)}
        printed = {rank: next((line for line in reversed(lines) if line), "") for rank, lines in said.items()}
        return Trial(contender, fault, call, victim, seen, ended, printed)


class _Meeting:
    """Where the ranks of a trial tell each other how far they are: files, which no fault touches."""

    def __init__(self, folder: str, me: int) -> None:
        self.folder, self._me = Path(folder), me
        self.pids: dict[int, int] = {}
        self.pids = self.hear("pid", range(RANKS), os.getpid())

    def tell(self, stage: str, value: Any) -> None:
        """Write it down."""
        draft = self.folder / f"{self._me}.draft"
        draft.write_text(json.dumps(value))
        draft.rename(self.folder / f"{self._me}.{stage}")

    def hear(self, stage: str, ranks: Sequence[int], value: Any) -> dict[int, Any]:
        """Tell, then wait until each of these ranks has told, or has ended; what they told."""
        self.tell(stage, value)
        files = {rank: self.folder / f"{rank}.{stage}" for rank in ranks}
        while not all(file.exists() or self._ended(rank) for rank, file in files.items()):
            time.sleep(_ASK_S)
        return {rank: json.loads(file.read_text()) for rank, file in files.items() if file.exists()}

    def _ended(self, rank: int) -> bool:
        if rank not in self.pids:
            return False
        try:
            return Path(f"/proc/{self.pids[rank]}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except FileNotFoundError:
            return True


def _live(folder: str, name: str, fault: str, call: str, victim: int, port: int) -> None:
    """One rank of a trial: three rounds of the call, the second one with the fault."""
    me = unisono.get_rank()
    out = os.open(f"{folder}/{me}.out", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    meeting = _Meeting(folder, me)
    contender = enter(name, me, RANKS, port, LIMIT_S)
    player = _Player(contender, call, me, victim, meeting)
    player.play(1)
    meeting.hear("ready", range(RANKS), None)
    rounds = []
    if me == victim and fault == "late":
        time.sleep(_LATE_S)
    for number in (2, 3):
        rounds.append(player.play(number, fault if me == victim and number == 2 else ""))
        if fault in DEADLY:
            break
    alive = [rank for rank in range(RANKS) if rank != victim or fault not in DEADLY]
    heard = meeting.hear("called", alive, rounds)
    same = len(heard) == RANKS and all(theirs[-1]["data"] == "right" for theirs in heard.values())
    end: dict[str, Any] = {"rounds": rounds, "same group": same}
    if not same:
        began = time.monotonic()
        try:
            contender.go_on(sorted(heard))
            tensor = torch.full((_COUNT,), 2.0**me)
            contender.all_reduce(tensor)
            right = bool((tensor == sum(2.0**rank for rank in heard)).all())
            end |= {"new group": time.monotonic() - began} if right else {"refusal": "wrong data"}
        except Exception as error:  # noqa: BLE001  this one, too, has its own classes
            end["refusal"] = f"{type(error).__name__}: {error}"
    meeting.hear("end", sorted(heard), end)
    if fault == "SIGSTOP" and me == min(heard):
        os.kill(meeting.pids[victim], signal.SIGKILL)


class _Player:
    """Makes the calls of one rank, each with data of its own, and looks at what came."""

    def __init__(self, contender: Contender, call: str, me: int, victim: int, meeting: _Meeting) -> None:
        self._contender, self._call, self._me, self._victim = contender, call, me, victim
        self._meeting = meeting

    def play(self, number: int, fault: str = "") -> dict[str, Any]:
        """One call, and what can be said of it."""
        _end(fault)
        count = {"longer": 2 * _COUNT, "shorter": _COUNT // 2}.get(fault, _COUNT)
        tensor = torch.full((count,), 10.0 * number + self._me)
        if self._me == self._victim and fault != "refused":
            self._meeting.tell(f"entered {number}", None)
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
        """The call. refused: with an argument that raises an error."""
        if self._call == "all_reduce":
            self._contender.all_reduce(tensor, refused=refused)
            return
        if refused:
            tensor = tensor.to_sparse()
        if self._call == "broadcast":
            self._contender.broadcast(tensor, self._victim)
        elif self._call == "barrier":
            self._contender.barrier()
        elif self._me != self._victim:
            self._contender.recv(tensor, self._victim)
        else:
            for rank in range(RANKS):
                if rank != self._me:
                    self._contender.send(tensor, rank)

    def _right(self, tensor: torch.Tensor, number: int) -> bool:
        """Is it what this call should give? A barrier must not end before the victim has come."""
        if not Path(self._meeting.folder, f"{self._victim}.entered {number}").exists():
            return False
        if self._call == "barrier":
            return True
        one = 10.0 * number
        expected = sum(one + rank for rank in range(RANKS)) if self._call == "all_reduce" else one + self._victim
        return tensor.numel() == _COUNT and bool((tensor == expected).all())


def _end(fault: str) -> None:
    if fault == "exit":
        os._exit(3)
    if fault in DEADLY:
        os.kill(os.getpid(), getattr(signal, fault))
