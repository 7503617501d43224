"""How many lanes a call has."""

from __future__ import annotations

import os
import subprocess
from unittest.mock import ANY

import pytest

import unisono
from unisono.base.config import Config
from unisono.schedule.choose.lane_limits import Lanes, Processors, choose_lanes

FREE = Processors(16, 4, None, 16)


@pytest.mark.parametrize(
    ("lanes", "movers", "ranks", "neighbours", "here", "expected", "because"),
    [
        (8, 1, 2, 2, FREE, 8, "as set"),
        (8, 2, 2, 2, FREE, 8, "as set"),
        (16, 2, 2, 2, FREE, 8, "16 processors"),
        (8, 4, 4, 4, FREE, 4, "16 processors, 4 of 4 ranks busy"),
        (8, 1, 2, 4, FREE, 5, "3 of 4 ranks busy"),  # two ranks are in another group
        (8, 2, 2, 2, Processors(4, 1, None, 16), 4, "4 processors of its own"),
        (8, 2, 2, 2, Processors(1, 1, None, 1), 1, "1 processor of its own"),
        (8, 4, 4, 4, Processors(8, 2, None, 16), 4, "8 processors, 4 of 4 ranks busy"),  # two others have eight others
        (8, 2, 2, 2, Processors(2, 2, None, 1), 1, "2 processors"),
        (8, 1, 2, 2, Processors(2, 2, None, 1), 2, "2 processors"),
        (8, 2, 2, 2, Processors(16, 2, None, 1), 8, "as set"),  # PyTorch has fewer threads
        (8, 2, 2, 2, Processors(16, 2, 4.5, 16), 2, "control groups leave 4.5 processors"),
        (8, 2, 2, 2, Processors(16, 2, 0.5, 16), 1, "control groups leave 0.5 processors"),
        (8, 9, 9, 9, Processors(2, 9, None, 1), 1, "2 processors"),
        (0, 2, 2, 2, Processors(64, 2, None, 32), 8, "the most by default"),
        (0, 2, 2, 2, Processors(64, 2, None, 3), 3, "3 threads of PyTorch"),
        (0, 4, 4, 4, FREE, 4, "16 processors, 4 of 4 ranks busy"),
        (0, 1, 4, 4, FREE, 4, "16 processors, 4 of 4 ranks busy"),  # ranks that only wait keep theirs
        (0, 1, 2, 2, Processors(2, 2, None, 2), 1, "2 processors"),
        (0, 2, 2, 2, Processors(3, 2, None, 3), 1, "3 processors"),
        (0, 2, 2, 2, Processors(16, 2, 4.5, 16), 2, "control groups leave 4.5 processors"),
    ],
)  # fmt: skip
def test_there_are_never_more_lanes_than_processors_for_them(
    lanes: int, movers: int, ranks: int, neighbours: int, here: Processors, expected: int, because: str
) -> None:
    found = choose_lanes(1 << 30, movers, ranks, neighbours, here, Config(lanes=lanes))
    assert found.number == expected
    assert because in found.why


def test_ranks_that_only_wait_sleep_where_the_others_need_their_processors() -> None:
    def leave(here: Processors, movers: int = 1, ranks: int = 2) -> bool:
        return choose_lanes(1 << 30, movers, ranks, ranks, here, Config(lanes=8)).leave

    assert leave(Processors(2, 2, None, 1))
    assert not choose_lanes(1 << 30, 1, 2, 2, Processors(4, 2, None, 2), Config(lanes=0)).leave
    assert leave(Processors(8, 2, None, 8))
    assert not leave(Processors(9, 2, None, 9))
    assert leave(Processors(9, 2, 8.9, 9))
    assert not leave(Processors(4, 1, None, 4))  # each rank has its own
    assert not leave(Processors(2, 2, None, 1), 2)  # no lanes


def test_ranks_that_may_run_on_the_same_processors_share_them() -> None:
    every = os.sched_getaffinity(0)
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            assert Processors.here([os.getpid(), other.pid], 0, 1) == Processors(len(every), 2, ANY, 1)
            assert Processors.here([os.getpid()], 3, 5) == Processors(len(every), 4, ANY, 5)
            assert Processors.here([(1 << 22) + 1], 0, 1).sharers == 1  # not to be seen from here
            if len(every) > 1:
                os.sched_setaffinity(0, {min(every)})
                os.sched_setaffinity(other.pid, every - {min(every)})
                assert Processors.here([os.getpid(), other.pid], 0, 1) == Processors(1, 1, ANY, 1)
        finally:
            os.sched_setaffinity(0, every)
            other.kill()


def test_short_calls_and_barriers_have_one_lane() -> None:
    config = Config(lanes=4, lane_bytes=1000)
    assert choose_lanes(1001, 2, 2, 2, FREE, config).number == 4
    assert choose_lanes(1000, 2, 2, 2, FREE, config) == Lanes(
        1, "1 lane: up to 1000 B, to wake a helper takes longer than it saves"
    )
    assert choose_lanes(1001, 0, 2, 2, FREE, config) == Lanes(1)
    assert choose_lanes(1 << 30, 2, 2, 2, FREE, Config(lanes=1)) == Lanes(1)


@pytest.mark.parametrize("lanes", [-1, 1025])
def test_a_number_of_lanes_that_makes_no_sense_is_refused(lanes: int) -> None:
    with pytest.raises(unisono.ArgumentError, match="UNISONO_LANES"):
        Config(lanes=lanes)
