"""Messages are logged by both their ranks and traced; errors of endless calls come with all ranks' last calls."""

import json
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from tests.observe.test_trace import NEEDED, read, text_in
from tests.support.faults import FAILED, die
from tests.support.on_ranks import in_new_world, in_world
from tests.support.waiting import until
from unisono import PeerGone, WaitTimeout
from unisono.base.records import CallRecord
from unisono.engine.logs import rank_logs
from unisono.engine.logs.plan_registry import PlanNote
from unisono.engine.logs.rank_logs import MESSAGES, CallLog, LoggedMessage, MessageLog, log_bytes, message_log_bytes
from unisono.observe.traces import recorded as recording
from unisono.observe.traces.last_calls import last_calls_text
from unisono.observe.traces.tracks import MessageGroup, RankCall, Track, pairs_of, rank_messages


def message_log(messages: int = 8) -> MessageLog:
    return MessageLog(memoryview(bytearray(message_log_bytes(messages))))


@pytest.mark.parametrize("what", ["calls", "messages"])
def test_a_recording_leaves_out_what_is_being_written(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes({"calls": log_bytes, "messages": message_log_bytes}[what](8)))
    with path.open("r+b") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0))
    messages, calls = MessageLog(memory), CallLog(memory)

    def log(number: int) -> None:
        if what == "calls":
            calls.enter(number, 1, number)
        else:
            assert messages.write(1, 2, 3, 4, 5, 6, 7) == number

    for number in range(1, 9):
        log(number)
    numbers = iter(range(9, 10))

    def write_meanwhile() -> None:
        for number in numbers:
            log(number)

    monkeypatch.setattr(rank_logs, "order", write_meanwhile)
    seen = recording._log(tmp_path, path.name, CallLog if what == "calls" else MessageLog)
    assert [one.number for one in seen.read()] == [4, 5, 6, 7, 8]


def test_the_last_messages_are_kept() -> None:
    log = message_log()
    assert log.read() == []
    for k in range(1, 20):
        assert log.write(4096, 7 * k, 100 * k, 2 * k + 1, 8 * k, k, 100 * k + 50) == k
    assert log.read() == [
        LoggedMessage(k, 4096, True, k, 7 * k, 8 * k, k, 100 * k, 100 * k + 50) for k in range(14, 20)
    ]


def test_a_message_that_takes_long_is_there_before_it_is_done() -> None:
    log = message_log()
    number = log.write(4096, 3, 100, 1 - 2, 0, 0, 0)
    assert log.read() == [LoggedMessage(1, 4096, True, -1, 3, 0, 0, 100, 0)]
    log.end(number, 2 * 5 + 1, 24, 9, 400)
    assert log.read() == [LoggedMessage(1, 4096, True, 5, 3, 24, 9, 100, 400)]
    for k in range(8):
        log.write(4096, k, k, 2, 8, k, k)
    log.end(number, 1, 1, 1, 1)  # it is no longer there
    assert all(one.number != number and one.nbytes == 8 for one in log.read())


def test_sends_and_receives_find_each_other_in_the_group_of_their_time() -> None:
    pair, key = MessageGroup(4096, 0, (0, 2), (0, 4096, "pair")), (0, 4096, "later")
    later = MessageGroup(4096, 1000, (2, 0), key)
    sent = rank_messages(0, [LoggedMessage(1, 4096, False, 1, 5, 8, 1, 100, 101)], [pair, later])
    sent += rank_messages(0, [LoggedMessage(2, 4096, False, 0, 5, 8, 1, 2000, 2001)], [pair, later])
    taken = rank_messages(2, [LoggedMessage(1, 4096, True, 1, 5, 8, 1, 1500, 2010)], [pair, later])
    assert [(one.rank, one.peer, one.key[-1]) for one in sent] == [(0, 2, "pair"), (0, 2, "later")]
    (found,) = pairs_of([*sent, *taken])
    assert (found.send.key, found.waited_ns) == (key, 500)


def work() -> None:
    me = unisono.get_rank()
    pair = unisono.new_group([0, 2], name="pair")
    if me == 0:
        unisono.send(torch.full((2,), 1.0), 1, tag=7)
        unisono.isend(torch.full((300_000,), 2.0), 1, tag=8).wait()
        unisono.send(torch.full((3,), 3.0), 1, group=pair)
    elif me == 1:
        late = [unisono.irecv(torch.empty(300_000), 0, tag=8), unisono.irecv(None, None, tag=7)]
        for one in late:
            one.wait()
    else:
        unisono.recv(None, 0, group=pair)
    unisono.barrier()


def messages_in(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    (path,) = folder.glob("*.json")
    found = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "message"]
    for event in found:
        assert set(event) == {"ph", *NEEDED[event["ph"]]}
    return [one for one in found if one["ph"] == "X"], [one for one in found if one["ph"] in "sf"]


def test_messages_stand_in_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_TRACE", str(tmp_path))
    unisono.run(work, 3, timeout_s=90)
    text_in(tmp_path)
    slices, arrows = messages_in(tmp_path)
    said = {(one["pid"], one["name"], one["args"]["tag"], one["args"]["group"]) for one in slices}
    assert said == {
        (0, "send 8 B to 1", 7, "world"), (1, "recv 8 B from 0", 7, "world"),
        (0, "send 1.14 MiB to 1", 8, "world"), (1, "recv 1.14 MiB from 0", 8, "world"),
        (0, "send 12 B to 2", 0, "pair"), (2, "recv 12 B from 0", 0, "pair"),
    }  # fmt: skip
    assert all(one["dur"] > 0 for one in slices)
    assert len({(one["pid"], one["tid"]) for one in slices if one["pid"] == 1}) == 2  # they overlap
    ways = [(one["pid"], other["pid"]) for one, other in zip(arrows[::2], arrows[1::2], strict=True)]
    assert sorted(ways) == [(0, 1), (0, 1), (0, 2)]
    for one, other in zip(arrows[::2], arrows[1::2], strict=True):
        assert one["id"] == other["id"]
        assert one["ts"] <= other["ts"]


@in_new_world(2)
def test_the_log_is_always_on_and_outside_of_traces_too() -> None:
    group = unisono.init()
    other = 1 - group.rank
    for k in range(MESSAGES + 5):
        unisono.sendrecv(torch.full((1 + group.rank,), float(k)), other, torch.empty(1 + other), other, tag=k)
    unisono.barrier()
    for rank in range(2):
        found = group.host.arena.messages(rank).read()
        assert len(found) == MESSAGES - 2
        for one in found:
            assert one.peer == 1 - rank
            assert one.nbytes == 4 * (2 - rank if one.is_receive else 1 + rank)
            assert 0 < one.entered_ns <= one.left_ns
            assert one.place == one.tag + 1
    unisono.barrier()


def track(rank: int, *calls: RankCall) -> Track:
    return Track("world", 0, rank, rank, 3, calls)


def call(number: int, entered_us: int, left_us: int, counts: int = 2) -> RankCall:
    note = PlanNote(CallRecord("all_reduce", "float32", (counts,), op="sum", where=f"a.py:{counts}"), 8)
    return RankCall(number, 1000 * entered_us, 1000 * left_us, note)


def test_calls_are_aligned_by_number() -> None:
    tracks = [
        track(0, call(1, 100, 140), call(2, 200, 0)),
        track(1, call(1, 130, 150), call(2, 210, 0, 5)),
        track(2, call(1, 110, 151)),
    ]
    assert last_calls_text(tracks, 1_200_000).splitlines() == [
        "last calls of group 'world', by number:",
        "  #1 all_reduce(float32[2], sum) (first at a.py:2): ranks 0, 1, 2 left it, after 41 µs at most; "
        "rank 1 came last, 30 µs after the first",
        "  #2 all_reduce(float32[2], sum) (first at a.py:2): rank 0 in it, for 1 ms at most",
        "  #2 all_reduce(float32[5], sum) (first at a.py:5): rank 1 in it, for 990 µs at most; not entered by rank 2",
    ]
    assert last_calls_text([], 0) == ""
    assert last_calls_text(tracks).splitlines()[2].endswith("(first at a.py:2): rank 0 in it")


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


@in_world(3)
def test_a_timeout_shows_who_misses_the_call() -> None:
    pair = unisono.new_group([0, 2], name="pair")
    tensor = torch.full((3,), unisono.get_rank() + 1.0)
    if unisono.get_rank() == 1:
        unisono.barrier()
        return
    unisono.all_reduce(tensor, "max", group=pair)
    if unisono.get_rank() == 0:
        with pytest.raises(WaitTimeout) as caught:
            unisono.all_reduce(tensor, "min", group=pair, timeout_s=0.1)
        lines = notes_of(caught.value).splitlines()
        assert lines[0] == "last calls of group 'pair', by number:"
        assert lines[1].startswith("  #1 all_reduce(float32[3], max) (first at ")
        assert "ranks 0, 2 left it" in lines[1]
        assert lines[2].startswith("  #2 all_reduce(float32[3], min) (first at ")
        assert "rank 0 in it, for " in lines[2]
        assert "not entered by rank 2" in lines[2]
    unisono.barrier()


@in_new_world(2, return_exceptions=True, gives=[None, FAILED])
def test_the_calls_of_a_dead_rank_are_shown() -> None:
    group, tensor = unisono.init(), torch.full((3,), unisono.get_rank() + 1.0)
    unisono.all_reduce(tensor, "max")
    if group.rank == 1:
        until(lambda: group.host.entered(0) >= 2)
        die()
    with pytest.raises(PeerGone) as caught:
        unisono.all_reduce(tensor, "min")
    assert "ranks 0, 1 left it" in notes_of(caught.value)
    assert "not entered by rank 1" in notes_of(caught.value)


SCRIPT = """
import ctypes, faulthandler, os, signal, sys, time, torch, unisono
how, rank = sys.argv[1], unisono.init().rank
tensor = torch.full((4,), rank + 1.0)
for _ in range(10):
    unisono.all_reduce(tensor, "max")
if how == "abort":
    faulthandler.enable()
    os.abort()
if how == "segv":
    ctypes.string_at(0)
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1:
    while unisono.init().host.entered(0) < 11:
        time.sleep(0.001)
    print("ready", flush=True)
    time.sleep(1000)
unisono.barrier()
"""
LAUNCHERS = {
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "unisono": ["-m", "unisono", "run", "-n", "2"],
}


def start(folder: Path, launcher: str, how: str) -> subprocess.Popen[str]:
    """Two ranks that end in this way, traced there."""
    (folder / "script.py").write_text(SCRIPT)
    environ = {**os.environ, "UNISONO_TRACE": str(folder), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *LAUNCHERS[launcher], str(folder / "script.py"), how]
    return subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("how", ["kill", "abort", "segv"])
def test_ranks_that_end_at_once(tmp_path: Path, how: str) -> None:
    with start(tmp_path, "unisono", how) as job:
        assert job.wait(timeout=110)
    text = text_in(tmp_path)
    assert "rank 0 (pid " in text
    assert "has not ended its recording: it was killed, or still runs rank 1 (pid " in text
    assert "#10 all_reduce(float32[4], max) (first at " in text
    _, slices = read(tmp_path)
    assert sorted(one["args"]["number"] for one in slices) == sorted([*range(1, 11)] * 2)


@pytest.mark.long
def test_a_launcher_that_is_asked_to_end(tmp_path: Path) -> None:
    """As by Slurm, when the time is over: the launcher ends all ranks by SIGTERM."""
    with start(tmp_path, "torchrun", "wait") as job:
        assert job.stdout.readline() == "ready\n"
        job.send_signal(signal.SIGTERM)
        job.wait(timeout=110)
    text = text_in(tmp_path)
    assert "has not ended its recording" in text
    line = text.partition("#11 barrier() (first at ")[2]
    assert "rank 0 in it; not entered by rank 1" in line
    assert any(one["args"].get("unfinished") for one in read(tmp_path)[1])


def test_a_message_that_was_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        arena = unisono.init().host.arena
        if unisono.get_rank() == 0:
            unisono.recv(torch.full((3,), 0.0), 1, tag=5)
        until(lambda: arena.board(0).wait is not None)
        for rank in range(2):
            os.kill(arena.board(rank).pid, signal.SIGKILL)

    monkeypatch.setenv("UNISONO_TRACE", str(tmp_path))
    with pytest.raises(unisono.RankFailed):
        unisono.run(work, 2)
    assert "rank 0: recv 12 B from 1, tag 5, in group 'world'" in text_in(tmp_path)
