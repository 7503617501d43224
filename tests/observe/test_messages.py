"""Messages are logged by both their ranks, and stand in the trace: who has sent what to whom, and who waited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from tests.observe.test_trace import NEEDED
from unisono.engine.logs.message_log import MESSAGES, LoggedMessage, MessageLog, message_log_bytes
from unisono.observe.traces.message_pairs import MessageGroup, message_flows, pairs_of, rank_messages


def message_log(messages: int = 8) -> MessageLog:
    return MessageLog(memoryview(bytearray(message_log_bytes(messages))))


def test_the_last_messages_are_kept() -> None:
    log = message_log()
    assert log.read() == []
    for k in range(1, 20):
        assert log.write(4096, 7 * k, 100 * k, 2 * k + 1, 8 * k, k, 100 * k + 50) == k
    assert log.read() == [
        LoggedMessage(k, 4096, True, k, 7 * k, 8 * k, k, 100 * k, 100 * k + 50) for k in range(13, 20)
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
    assert [tuple(row) for row in message_flows([found])] == [(0, 2, 1, 8, 500)]


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


def test_the_log_is_always_on_and_outside_of_traces_too() -> None:
    def check() -> None:
        group = unisono.init()
        other = 1 - group.rank
        for k in range(MESSAGES + 5):
            unisono.sendrecv(torch.full((1 + group.rank,), float(k)), other, torch.empty(1 + other), other, tag=k)
        unisono.barrier()
        for rank in range(2):
            found = group.host.arena.messages(rank).read()
            assert len(found) == MESSAGES - 1
            for one in found:
                assert one.peer == 1 - rank
                assert one.nbytes == 4 * (2 - rank if one.is_receive else 1 + rank)
                assert 0 < one.entered_ns <= one.left_ns
                assert one.place == one.tag + 1
        unisono.barrier()

    unisono.run(check, 2, timeout_s=90)
