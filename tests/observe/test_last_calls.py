"""Errors of calls that do not end come with the last calls of all ranks, aligned by number."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
import torch

import unisono
from tests.support.waiting import until
from unisono import PeerGone, WaitTimeout
from unisono.base.records import CallRecord
from unisono.engine.logs.plan_registry import PlanNote
from unisono.observe.traces.last_calls import last_calls_text
from unisono.observe.traces.tracks import RankCall, Track


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


def test_a_timeout_shows_who_misses_the_call(worlds: Callable[[int], unisono.World]) -> None:
    def work() -> None:
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

    worlds(3).run(work)


def test_the_calls_of_a_dead_rank_are_shown() -> None:
    def work() -> str:
        group, tensor = unisono.init(), torch.full((3,), unisono.get_rank() + 1.0)
        unisono.all_reduce(tensor, "max")
        if group.rank == 1:
            until(lambda: group.host.entered(0) >= 2)
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerGone) as caught:
            unisono.all_reduce(tensor, "min")
        return notes_of(caught.value)

    told = unisono.run(work, 2, return_exceptions=True)[0]
    assert isinstance(told, str)
    assert "ranks 0, 1 left it" in told
    assert "not entered by rank 1" in told
