"""One trace of several hosts: one file, one clock, and how wrong that can be."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from tests.observe.test_trace import check, read
from unisono.base.records import CallRecord
from unisono.engine.logs.plan_registry import PlanNote
from unisono.observe.traces.perfetto import events
from unisono.observe.traces.recorded import Recorded, aligned
from unisono.observe.traces.tracks import RankCall, Track

REDUCE = PlanNote(CallRecord("all_reduce", "float32", (2,), op="sum", algorithm="all_reduce.ring", where="a.py:1"), 8)
MAX = PlanNote(CallRecord("all_reduce", "float32", (2,), op="max", algorithm="all_reduce.ring", where="a.py:1"), 8)

Times = Sequence[tuple[int, int]]


def part(rank: int, host: int, times: Times, notes: Sequence[PlanNote | None] = (), unix_ns: int = 0) -> Recorded:
    """A rank of two, with these calls of a group over both hosts."""
    whats = notes or [REDUCE] * len(times)
    calls = [RankCall(k, *time, what) for k, (time, what) in enumerate(zip(times, whats, strict=True), 1)]
    track = Track("world", 0, rank, rank, 2, calls, over=77)
    return Recorded("job", rank, 2, host, f"h{host}", f"m{host}", 7, 7, "", unix_ns, True, [track])


def test_clocks_are_found_in_the_calls_though_they_drift() -> None:
    rng = random.Random(7)
    true: list[list[tuple[int, int]]] = [[], []]
    at = 10**9
    for _ in range(2000):
        at += rng.randrange(10**6, 10**8)
        came = [at, at + rng.randrange(-(10**6), 10**6)]
        for rank in range(2):  # whoever is first waits for the other, and a message takes its time
            true[rank].append((came[rank], max(came) + rng.randrange(20_000, 60_000)))

    def other(time: int) -> int:
        """What the other host's clock says at this time: it is ahead, and 60 ppm too fast."""
        return 5 * 10**12 + time + time * 60 // 10**6

    theirs = [(other(entered), other(left)) for entered, left in true[1]]
    (one, two), (clock,) = aligned([part(0, 0, true[0]), part(1, 1, theirs)])
    assert clock.error_ns is not None
    assert clock.error_ns < 100_000
    assert abs(clock.ahead_ns - 5 * 10**12 - 60_000) <= clock.error_ns + 10_000
    assert [call.entered_ns for call in one.tracks[0].calls] == [entered for entered, _ in true[0]]
    for call, (entered, left) in zip(two.tracks[0].calls, true[1], strict=True):
        assert abs(call.entered_ns - entered) <= clock.error_ns + 1
        assert abs(call.left_ns - left) <= clock.error_ns + 1
    for mine, its in zip(one.tracks[0].calls[:-1], two.tracks[0].calls, strict=False):
        assert mine.left_ns >= its.entered_ns
        assert its.left_ns >= mine.entered_ns


def test_calls_that_have_failed_say_nothing() -> None:
    """Rank 0 gives up the third call long before rank 1 comes; in the second, they disagree."""
    mine = [(1000, 2000), (3000, 3001), (5000, 5001)]
    its = [(1500, 2100), (9000, 9001), (20_000, 20_100)]
    notes = [REDUCE, REDUCE, REDUCE]
    (_, two), (clock,) = aligned([part(0, 0, mine, notes), part(1, 1, its, [REDUCE, MAX, REDUCE])])
    assert clock.error_ns == (500 + 1100 + 1) // 2
    assert two.tracks[0].calls[0].entered_ns == 1500 + (500 - 1100) // 2


def test_without_calls_together_the_calendars_have_to_do() -> None:
    (_, two), (clock,) = aligned([part(0, 0, [(5, 6)], unix_ns=10), part(1, 1, [(5, 6)], unix_ns=1000)])
    assert clock.error_ns is None
    assert clock.ahead_ns == -990
    assert two.tracks[0].calls[0] == RankCall(1, 995, 996, REDUCE)


def work() -> None:
    rank = unisono.get_rank()
    tensor = torch.full((8,), rank + 1.0)
    for _ in range(20):
        unisono.all_reduce(tensor, "max")
    pair = unisono.new_group([0, 3], name="pair")
    beside = [unisono.new_group(ranks, name="beside") for ranks in ([0, 1], [2, 3])]
    if rank in (0, 3):
        unisono.all_reduce(tensor, "min", group=pair)
    unisono.broadcast(tensor, 0, group=beside[rank // 2]) if rank < 2 else unisono.barrier(group=beside[rank // 2])
    unisono.barrier()


def names_of(slices: list[dict[str, Any]], rank: int, name: str) -> int:
    return [one["name"].partition(" ")[0] for one in slices if one["pid"] == rank].count(name)


def test_a_job_over_hosts_leaves_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_TRACE", str(tmp_path))
    with unisono.world(4, hosts="2x2", timeout_s=90) as world:
        world.run(work)
    about, slices = read(tmp_path)
    (clock,) = about["clocks"]
    assert clock["host"] == 1
    assert clock["name"].endswith("/1")
    assert abs(clock["ahead_ns"]) <= clock["error_ns"]  # they are one machine
    for rank in range(4):
        mine = [one for one in slices if one["pid"] == rank]
        assert len([one for one in mine if one["args"]["call"] == "all_reduce(float32[8], max)"]) >= 20
        assert names_of(slices, rank, "broadcast") == (rank < 2)
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())["traceEvents"]
    titles = [event["args"]["name"] for event in found if event["name"] == "process_name"]
    assert [title.split(" (")[0].rpartition("/")[2] for title in titles] == [
        "0, rank 0", "0, rank 1", "1, rank 2", "1, rank 3",
    ]  # fmt: skip
    labels = [event["args"]["labels"] for event in found if event["name"] == "process_labels"]
    assert len(labels) == 4
    assert len(set(labels)) == 2


@pytest.mark.long
def test_folders_of_several_hosts_become_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of hosts that share nothing: each has the files of its ranks only."""
    monkeypatch.setenv("UNISONO_TRACE", str(tmp_path / "all"))
    with unisono.world(4, hosts="2x2", timeout_s=90) as world:
        world.run(work)
    for host, ranks in enumerate(((0, 1), (2, 3))):
        (tmp_path / f"h{host}" / "calls").mkdir(parents=True)
        for rank in ranks:
            for path in (tmp_path / "all" / "calls").glob(f"*.rank-{rank}.*"):
                shutil.copy(path, tmp_path / f"h{host}" / "calls")

    def command(*folders: str) -> str:
        words = [sys.executable, "-m", "unisono", "trace", *(str(tmp_path / folder) for folder in folders)]
        environ = {**os.environ, "UNISONO_TRACE": ""}
        return subprocess.run(words, capture_output=True, text=True, timeout=110, check=True, env=environ).stdout

    said = command("h1")
    assert "ranks 0, 1 of 4 not in it" in said.replace("\n", " ")
    assert {one["pid"] for one in read(tmp_path / "h1")[1]} == {2, 3}
    said = command("h0", "h1")
    assert "right to within" in said
    assert read(tmp_path / "h0") == read(tmp_path / "all")


def test_arrows_never_lead_back_in_time_whatever_the_clocks_have_said() -> None:
    came = [(0, 300_000), (400_000, 700_000), (800_000, 900_000)]
    late = [(10**9 + 200_000, 10**9 + 310_000), (10**9 + 600_000, 10**9 + 710_000), (10**9 + 850_000, 10**9 + 900_000)]
    parts, _ = aligned([part(0, 0, came), part(1, 1, late)])
    found = list(events(parts))
    check(found)
    assert [event["pid"] for event in found if event["ph"] == "f"][:2] == [1, 1]
