"""The same faults over our backend and Gloo: `python -m benchmarks.faults`."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import torch
import torch.distributed as dist
import typer
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # not in torch's __all__

import unisono
from unisono.base.units import format_seconds
from unisono.integrations.torch import register

from ..reports import GLOO, OURS, Output, counted, describe, grouped, hand_in, head, table
from ..turns import Meeting, until

DETAIL = "Gloo, DETAIL"
"""Gloo, where torch compares each call of all ranks before it is made."""

CONTENDERS = (OURS, GLOO, DETAIL)

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

    ended: by rank, in words, how its function has failed.
    """

    contender: str
    fault: str
    call: str
    victim: int
    seen: dict[int, dict[str, Any]]
    ended: dict[int, str]


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
    return Trial(contender, fault, call, victim, seen, ended)


def _start(name: str, port: int, prefix: str, members: Sequence[int]) -> None:
    """Make a group of these ranks, which meet under this prefix of the store."""
    limit, rank = timedelta(seconds=LIMIT_S), members.index(unisono.get_rank())
    if name == OURS:
        register()  # torch does it by itself where the package is installed
    elif name == DETAIL:
        c10d.set_debug_level(c10d.DebugLevel.DETAIL)
    store = PrefixStore(prefix, TCPStore("127.0.0.1", port, None, False, limit))
    backend = "unisono" if name == OURS else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=len(members), timeout=limit)


def _go_on(name: str, port: int, left: Sequence[int]) -> None:
    """Make a group of these ranks; each of them calls this."""
    if name == OURS and len(left) < RANKS:
        dist.shrink_group([rank for rank in range(RANKS) if rank not in left])
    else:
        dist.destroy_process_group()
        _start(name, port, "again", left)


def _live(folder: str, name: str, fault: str, call: str, victim: int, port: int) -> None:
    """One rank of a trial: three rounds of the call, the second one with the fault."""
    me = unisono.get_rank()
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    meeting = Meeting(folder)
    pids = _hear(meeting, "pid", os.getpid(), dict.fromkeys(range(RANKS), 0))
    _start(name, port, "first", range(RANKS))
    player = _Player(call, me, victim, meeting)
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
            _go_on(name, port, sorted(heard))
            tensor = torch.full((_COUNT,), 2.0**me)
            dist.all_reduce(tensor)
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

    def __init__(self, call: str, me: int, victim: int, meeting: Meeting) -> None:
        self._call, self._me, self._victim, self._meeting = call, me, victim, meeting

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
        victim = self._victim
        if refused and self._call != "all_reduce":
            tensor = tensor.to_sparse()
        if self._call == "all_reduce":
            dist.all_reduce(tensor, dist.ReduceOp.BAND if refused else dist.ReduceOp.SUM)
        elif self._call == "broadcast":
            dist.broadcast(tensor, victim)
        elif self._call == "barrier":
            dist.barrier()
        elif self._me != victim:
            dist.recv(tensor, victim)
        else:
            for rank in range(RANKS):
                if rank != victim:
                    dist.send(tensor, rank)

    def _right(self, tensor: torch.Tensor, number: int) -> bool:
        """Is it what this call should give? A barrier must not end before the victim has come."""
        if not self._meeting.has(f"entered {number}"):
            return False
        if self._call == "barrier":
            return True
        one = 10.0 * number
        expected = sum(one + rank for rank in range(RANKS)) if self._call == "all_reduce" else one + self._victim
        return tensor.numel() == _COUNT and bool((tensor == expected).all())


_HOW = f"""\
{RANKS} ranks, float32, 100 KB, the same program for all; a time-out of {LIMIT_S:.0f} s for each (Gloo's default is 30
minutes, ours 5). Something happens to one rank, the victim, instead of its second call or in it; each is the victim in
turn. In a broadcast it is the victim that has the data, and in send/recv that sends it to the others. `longer` and
`shorter`: the victim's tensor has twice or half the size. `refused`: an argument of the victim's call raises an error
there, and its program goes on with the next call, as all do. `late`: the victim comes a second late, which is no fault.

The time is that of a call of the others, from its start to its error. An error *names* the victim if its text has the
words "rank" and that number. When all that are left have heard, and have been told by the benchmark who is left, they
try to go on: with a third call in the same group, or else in a new group, whose time runs until its first `all_reduce`
has the right result. Ours is made by `dist.shrink_group`; Gloo's by `destroy_process_group` and `init_process_group`,
at a store that no rank holds: if rank 0 held it, as it does with `env://`, it would die with rank 0. `{DETAIL}`: with
`TORCH_DISTRIBUTED_DEBUG=DETAIL`, with which torch compares the calls first."""


def faults_markdown(machine: Mapping[str, str], trials: Sequence[Trial]) -> list[str]:
    names = list(dict.fromkeys(one.contender for one in trials))
    lines = head("The same faults, side by side", machine, _HOW)
    lines += ["", "## In short", *table(["", *names], _summary(trials, names))]
    lines += ["", "## Each fault in each call"]
    lines += ["", "Above, what the others saw; below, how the ranks that are left went on."]
    lines += table(["fault", "call", *names], _rows(trials, names))
    return [
        *lines, "",
        "A send that is refused sends nothing; so, over all of them, the receiver takes the next message for it, and "
        "waits for that one.",
    ]  # fmt: skip


def _first(one: Trial, rank: int) -> dict[str, Any] | None:
    """How the first round that was not right ended on a rank; the last round if all were; None if it had no end."""
    rounds = one.seen[rank]["rounds"] if rank in one.seen else []
    return next((each for each in rounds if each["data"] != "right"), rounds[-1] if rounds else None)


def _others(trials: Sequence[Trial]) -> list[tuple[Trial, int, dict[str, Any] | None]]:
    return [(one, rank, _first(one, rank)) for one in trials for rank in range(RANKS) if rank != one.victim]


def _saw(trials: Sequence[Trial], data: str = "error") -> list[dict[str, Any]]:
    """The rounds of others that ended in this way."""
    return [first for _, _, first in _others(trials) if first and first["data"] == data]


def _ended(one: Trial, rank: int) -> str:
    """How the process of a rank ended that has told nothing."""
    if found := re.search(r"SIG\w+", one.ended.get(rank, "")):
        return found[0]
    return "hangs" if rank in one.ended else "nothing"


def _aborted(trials: Sequence[Trial]) -> int:
    """Ranks whose process was ended by a signal that nobody had sent."""
    return sum(
        _ended(one, rank).startswith("SIG")
        for one in trials
        for rank in range(RANKS)
        if rank not in one.seen and (rank != one.victim or one.fault not in DEADLY)
    )


def _summary(trials: Sequence[Trial], names: Sequence[str]) -> Iterator[list[str]]:
    faulty, late = [fault for fault in FAULTS if fault != "late"], ["late"]
    dead, alive = ["exit", "SIGKILL"], [fault for fault in faulty if fault not in DEADLY]

    def told(of: Sequence[Trial]) -> str:
        return f"{len(_saw(of))} of {len(_others(of))}"

    rows: dict[str, tuple[Sequence[str], Callable[[Sequence[Trial]], str]]] = {
        "other ranks that got an error": (faulty, told),
        "errors that name the victim": (
            faulty, lambda of: f"{sum(error['names'] for error in _saw(of))} of {len(_saw(of))}"
        ),
        "other ranks whose call returned with wrong data": (faulty, lambda of: str(len(_saw(of, "wrong")))),
        "processes that ended by SIGABRT or the like": (faulty, lambda of: str(_aborted(of))),
        "a dead rank is told after, median": (dead, lambda of: _time(error["seconds"] for error in _saw(of))),
        "... and a smaller group works after, median": (dead, lambda of: _time(_new(of))),
        "nobody has died, and the group goes on as it is": (alive, lambda of: f"{sum(map(_same, of))} of {len(of)}"),
        "late, and an error all the same": (late, told),
    }  # fmt: skip
    for title, (faults, figure) in rows.items():
        mine = [[one for one in trials if one.contender == name and one.fault in faults] for name in names]
        yield [title, *map(figure, mine)]


def _same(one: Trial) -> bool:
    return len(one.seen) == RANKS and all(end["same group"] for end in one.seen.values())


def _new(trials: Sequence[Trial]) -> list[float]:
    return [end["new group"] for one in trials for end in one.seen.values() if "new group" in end]


def _time(of: Any) -> str:
    times = list(of)
    return format_seconds(median(times)) if times else "never"


def _rows(trials: Sequence[Trial], names: Sequence[str]) -> Iterator[list[str]]:
    for (fault, call), of_call in grouped(trials, "fault", "call").items():
        of = grouped(of_call, "contender")
        yield [fault, call, *(_cell(of.get((name,), [])) for name in names)]


def _cell(trials: Sequence[Trial]) -> str:
    wrong = {"wrong": "**wrong data**", "right": "right data"}
    seen = counted(
        _ended(one, rank) if first is None else wrong.get(first["data"], first.get("error", ""))
        for one, rank, first in _others(trials)
    )
    if errors := _saw(trials):
        names = sum(error["names"] for error in errors)
        named = {0: "no name", len(errors): "named"}.get(names, f"named in {names} of {len(errors)}")
        seen += f", {named}, {_time(error['seconds'] for error in errors)}"
    took = f" {_time(_new(trials))}" if _new(trials) else ""
    ways = counted(map(_way, trials)).split(", ")
    return f"{seen}<br>{', '.join(way + took if way.startswith('new group') else way for way in ways)}"


def _way(one: Trial) -> str:
    if _same(one):
        return "same group"
    if not one.seen or not all("new group" in end for end in one.seen.values()):
        return "does not go on"
    return "new group of the rest" if _aborted([one]) else "new group"


def bench_faults(
    *,
    trials: Annotated[int, typer.Option(min=1, help="Trials of each fault in each call.")] = RANKS,
    faults: Annotated[str, typer.Option(help="Which faults.")] = ",".join(FAULTS),
    calls: Annotated[str, typer.Option(help="Which calls.")] = ",".join(CALLS),
    output: Output = None,
) -> None:
    """Let a rank fail in each way in each call, and see what the others see, with each contender in turn."""
    machine = describe()
    cases = [(fault, call) for fault in faults.split(",") for call in calls.split(",") if possible(fault, call)]
    done = []
    for fault, call in cases:
        for number in range(trials):
            done += [trial(name, fault, call, number % RANKS) for name in CONTENDERS]
        print(f"{fault}, {call}", file=sys.stderr)
    hand_in(faults_markdown(machine, done), output)


if __name__ == "__main__":
    typer.run(bench_faults)
