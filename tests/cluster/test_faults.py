"""Faults of ranks, hosts and links in network namespaces: all survivors name the culprits, and go on without them."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from tests.support.cluster import Cluster
from tests.support.namespaces import PORT, enter, join
from tests.support.waiting import until
from unisono.schedule import Hosts

SOON_S = 10.0
"""A host is lost after 2 s, a rank late after 4 s. No engine's own time-out is as short."""
LONG, UNDER_WAY = 8 << 20, 3 << 20
"""Elements of a long call; and the bytes that have left a host when it is under way, at 200 Mbit/s."""


def tell(folder: Path, name: str, value: object = None) -> None:
    (folder / "draft").mkdir(exist_ok=True)
    (folder / "draft" / name).write_text(json.dumps(value))
    (folder / "draft" / name).rename(folder / name)


def told(folder: Path, stage: str) -> dict[int, Any]:
    return {int(path.name.split()[1]): json.loads(path.read_text()) for path in folder.glob(f"{stage} *")}


def live(folder: Path, names: list[str], hosts: Hosts, place: str, late: int, limit_s: float) -> None:
    """One rank: calls until one fails, then a smaller group and a call in it. It ends when all have told."""
    me = unisono.get_rank()
    enter(names[hosts.host_of(me)])
    group, _ = join(me, hosts, PORT)
    group.timeout_s = limit_s
    far = [rank for rank in range(hosts.ranks) if hosts.host_of(rank) != hosts.host_of(me)]
    long, message = torch.zeros(LONG), torch.full((1 << 20,), float(me))

    def exchange(count: int) -> None:
        parts = {rank: torch.empty(count) for rank in far}
        works = [unisono.isend(message[:count], rank) for rank in far]
        for work in [*works, *(unisono.irecv(part, rank) for rank, part in parts.items())]:
            work.wait()
        assert all(bool((part == rank).all()) for rank, part in parts.items())

    exchange(3)
    unisono.all_reduce(torch.zeros(1000))
    unisono.barrier()
    tell(folder, f"waits {me}", os.getpid())
    if place == "gate" and me == late:
        until((folder / "go").exists)
    end: dict[str, Any] = {}
    try:
        while True:
            if place == "messages":
                exchange(len(message))
            else:
                unisono.all_reduce(torch.zeros(1000) if place == "gate" else long)
    except unisono.UnisonoError as error:
        named = getattr(error, "failed", None) or getattr(error, "missing", ())
        end = {"error": type(error).__name__, "named": sorted(named), "at": time.monotonic()}
    try:
        smaller = group.shrink(without=end["named"] if end["error"] == "WaitTimeout" else ())
        mine = torch.full((1000,), 2.0**me)
        unisono.all_reduce(mine, group=smaller)
        end["left"] = sorted(group.world_ranks.index(rank) for rank in smaller.world_ranks)
        assert mine[-1].item() == sum(2.0**rank for rank in end["left"])
    except unisono.LeftOut:
        end["left"] = []
    tell(folder, f"told {me}", end)
    until((folder / "over").exists)
    group.close()
    os._exit(0)  # the carrier's threads may be in its calls


def inflict(fault: str, cluster: Cluster, host: int, pids: list[int], sentinel: list[int]) -> Callable[[], None]:
    """Let it happen to a host, or to its first rank. Returns what ends the fault."""

    def send(number: int, to: list[int]) -> None:
        for pid in to:
            os.kill(pid, number)

    if fault == "kill":
        send(signal.SIGKILL, pids[:1])
    elif fault == "kill sentinel":
        send(signal.SIGKILL, sentinel)
    elif fault.startswith("stop"):
        stopped = pids[:1] if fault == "stop" else pids + sentinel
        send(signal.SIGSTOP, stopped)
        return lambda: send(signal.SIGCONT, stopped)
    elif fault == "cut link":
        cluster.cut(host)
        return lambda: cluster.mend(host)
    elif fault == "cut pair":
        cluster.cut_pair(host - 1, host)
        return lambda: cluster.mend_pair(host - 1, host)
    return lambda: None


@pytest.mark.parametrize(
    ("shape", "fault", "place"),
    [
        ("3x1", "stop", "long call"),
        ("3x1", "stop host", "messages"),
        ("3x1", "cut link", "messages"),
        ("2x2", "cut link", "gate"),
        ("2+1", "cut link", "long call"),
        ("3x1", "cut pair", "long call"),
        ("3x1", "kill", "long call"),
        ("3x1", "kill sentinel", "gate"),
    ],
)
def test_all_name_the_culprit_and_go_on(
    cluster: Callable[[str], Cluster], tmp_path: Path, shape: str, fault: str, place: str
) -> None:
    """Of two hosts the first one goes on, and of two that do not reach each other, so it is the second that is lost."""
    some, host = cluster(shape), int(shape != "3x1" or fault in ("kill", "cut pair"))
    hosts, everybody = some.hosts, range(some.hosts.ranks)
    lost = set(hosts.members[host])
    left = [rank for rank in everybody if rank not in lost]
    limit_s = 4.0 if fault == "stop" else 15.0
    at: list[float] = []

    def watch() -> None:
        until(lambda: len(told(tmp_path, "waits")) == hosts.ranks)
        if place != "gate":
            some.rate("200mbit")
            before = some.sent(host)
            until(lambda: some.sent(host) > before + UNDER_WAY)
        pids = told(tmp_path, "waits")
        sentinel = [pid for pid in some.processes(host) if pid not in pids.values()]
        at.append(time.monotonic())
        mend = inflict(fault, some, host, [pids[rank] for rank in hosts.members[host]], sentinel)
        tell(tmp_path, "go")
        late = lost if fault in ("stop", "stop host") else set()
        until(lambda: told(tmp_path, "told").keys() >= set(everybody) - late - (lost if fault == "kill" else set()))
        mend()
        some.rate("none")
        until(lambda: len(told(tmp_path, "told")) == hosts.ranks - (fault == "kill"))
        tell(tmp_path, "over")

    watching = threading.Thread(target=watch)
    watching.start()
    args = tmp_path, list(some.names), hosts, place, hosts.members[host][0], limit_s
    unisono.run(live, hosts.ranks, args, timeout_s=100, return_exceptions=True)
    watching.join()
    ends = told(tmp_path, "told")
    assert ends.keys() == set(everybody) - (lost if fault == "kill" else set())
    for rank, end in ends.items():
        if rank in lost:
            assert end["left"] == [], end
        else:
            assert end["error"] == ("WaitTimeout" if fault == "stop" else "PeerGone"), end
            assert end["named"] == sorted(lost), end
            assert end["at"] - at[0] < SOON_S
            assert end["left"] == left, end
    until(lambda: not any(some.processes(number) for number in range(len(hosts.members))))
