"""Scenes with deaths and other faults: some that are hard, and a share of those that `tests.fuzz.deaths` draws."""

import random
import time
from itertools import cycle

import pytest

from tests.conftest import NIGHTLY
from tests.fuzz.deaths import check
from tests.fuzz.fault_scene import ENDS, Call, Fault, Scene, draw, draw_hasty

DRAWN_S = 60.0 if NIGHTLY else 3.0

LONG = 2_000_000  # elements: more than is under way between hosts


CALLS = (
    Call("all_reduce", 4),
    Call("all_reduce", 60_000),
    Call("all_reduce", 60_000, algorithm="ring"),
    Call("all_reduce", 60_000, shared=True),
    Call("all_reduce", 60_000, background=True),
    Call("broadcast", 60_000),
    Call("barrier"),
)

AWAITED = (
    ("pair", 4, 1), ("pair", LONG, 0), ("new", 4, 1), ("ring", LONG, 1), ("sendrecv", 4, 1), ("batch", LONG, 0),
    ("objects", 4, 1), ("all_gather_object", 4, 1), ("all_reduce_coalesced", 1000, 0),
)  # fmt: skip
"""Call, elements, and the rank for which the other one waits."""


def three_sums(algorithm: str) -> tuple[Call, ...]:
    return (Call("all_reduce", 3000, algorithm=algorithm),) * 3


SCENES = {
    "a sub-group waits for a rank that recovers in the world": Scene(
        "4", (Call("barrier"), Call("all_gather", 1000, (0, 2))), (Fault(1, "kill", 0, "after"),)
    ),
    "the same over hosts, in the background": Scene(
        "2x2", (Call("ring"), Call("all_gather", 1000, (0, 2), False, True)), (Fault(1, "kill", 0, "before"),)
    ),
    "a rank waits for the message of one that waits for the dead": Scene(
        "4", (Call("barrier"), Call("chain", 1000)), (Fault(1, "kill", 1),)
    ),
    "the same over hosts": Scene("2x2", (Call("barrier"), Call("chain", 1000)), (Fault(1, "kill", 1),)),
    "killed in a long call between hosts": Scene(
        "2x2", (Call("all_reduce"), Call("all_reduce", LONG)), (Fault(3, "kill", 1, "within 0.005"),)
    ),
    "killed between two calls": Scene("2x2", (Call("all_reduce"), Call("barrier")), (Fault(0, "kill", 0, "after"),)),
    "killed in long messages": Scene("3x1", (Call("ring", LONG),), (Fault(1, "kill", 0, "within 0.005"),)),
    "all go on after an abort": Scene(
        "2x2", (Call("broadcast", 1000), Call("all_reduce", 5, (0, 1, 3))), (Fault(0, "abort", 0, "after"),)
    ),
    "aborted in a long call between hosts": Scene(
        "2x2", (Call("all_reduce"), Call("all_reduce", LONG)), (Fault(1, "abort", 1, "within 0.005"),)
    ),
    "stopped for a moment in a long call": Scene(
        "2x1", (Call("all_reduce", LONG),), (Fault(1, "pause", 0, "within 0.002"),)
    ),
    "two within a call": Scene(
        "4", (Call("all_reduce", 70_000),), (Fault(1, "kill", 0, "row 3"), Fault(2, "kill", 0, "row 2")), True
    ),
    **{
        f"at row {row} between hosts": Scene("2x1", (Call("all_reduce", 3),), (Fault(1, "kill", 0, f"row {row}"),))
        for row in range(8)
    },
    **{
        f"{how} at row {row} of two_shot": Scene("3", three_sums("two_shot"), (Fault(1, how, 1, f"row {row}"),))
        for how, row in [*(("kill", row) for row in range(6)), ("os_exit", 2)]
    },
    **{
        f"{how} at a row": Scene("3", three_sums("ring"), (Fault(2, how, 1, "row 3"),))
        for how in ("pause", "hold", "delay")
    },
    **{
        f"{how} before a call": Scene(ranks, (call, call), (Fault(1, how, 1),))
        for how, call, ranks in zip(ENDS, cycle(CALLS), cycle("325"), strict=False)
    },
    "two of five": Scene("5", (Call("all_reduce", 50_000),) * 2, (Fault(0, "kill", 1), Fault(3, "kill", 1))),
    "three of six": Scene("6", (Call("barrier"),) * 2, tuple(Fault(rank, "kill", 1) for rank in (1, 2, 5))),
    "one after the other": Scene(
        "4", (Call("all_reduce"), Call("barrier"), Call("reduce", 1000)), (Fault(0, "kill"), Fault(3, "kill", 2))
    ),
    "one while the others recover": Scene(
        "4", (Call("all_reduce"),), (Fault(0, "os_exit"), Fault(1, "kill", 0, "lend"))
    ),
    **{
        f"killed while awaited in {way} of {hosts}": Scene(
            hosts, (Call(way), Call(way, count)), (Fault(victim, "kill", 1, "awaited"),)
        )
        for way, count, victim in AWAITED
        for hosts in ("2", "2x1")
    },
    "two are stopped, one after the other, as they lend": Scene(
        "5", CALLS[:1], (Fault(4, "kill"), Fault(0, "freeze", 0, "lend"), Fault(1, "freeze", 0, "lend"))
    ),
    "one is stopped for a moment as it lends": Scene(
        "3", CALLS[:1], (Fault(2, "abort", 0, "after"), Fault(0, "pause", 0, "lend"))
    ),
    "the first of a host is stopped as it lends": Scene(
        "2x2", CALLS[:1], (Fault(2, "abort", 0, "after"), Fault(0, "freeze", 0, "lend"))
    ),
    "who lends in place of another is stopped": Scene(
        "2x2",
        CALLS[:1],
        (Fault(0, "abort", 0, "after"), Fault(2, "no memory", 0, "lend"), Fault(3, "freeze", 0, "lend")),
    ),
    "one is stopped as it borrows": Scene(
        "3", CALLS[:1], (Fault(1, "abort", 0, "after"), Fault(2, "freeze", 0, "borrow"))
    ),
    **{
        f"interrupted as ranks {step}": Scene(
            "3", CALLS[:1], (Fault(2, "abort", 0, "after"), Fault(0, "interrupt", 0, step))
        )
        for step in ("lend", "join")
    },
    "one has no memory": Scene("3", CALLS[:1], (Fault(1, "abort", 0, "after"), Fault(0, "no memory", 0, "lend"))),
    "nobody has memory": Scene(
        "3", CALLS[:1], (Fault(1, "abort", 0, "after"), *(Fault(rank, "no memory", 0, "lend") for rank in range(3)))
    ),
    "one host has no memory": Scene(
        "1+2", CALLS[:1], (Fault(0, "abort", 0, "after"), *(Fault(rank, "no memory", 0, "lend") for rank in (1, 2)))
    ),
    **{
        f"hasty ranks of {hosts}, {seed}": draw_hasty(random.Random(seed), hosts)
        for seed in (1, 2)
        for hosts in ("4", "2x2")
    },
    "a sentinel stops for a moment": Scene(
        "2x2", (Call("all_reduce"), Call("ring", 1000)), (Fault(2, "pause sentinel", 1),)
    ),
    "a rank and a sentinel are killed": Scene(
        "2x2",
        (Call("all_reduce"), Call("barrier"), Call("ring", 1000)),
        (Fault(1, "kill", 1), Fault(0, "end sentinel", 1), Fault(2, "end sentinel", 1, "after")),
    ),
    "a sentinel ends": Scene("3x1", (Call("all_reduce"), Call("barrier")), (Fault(2, "end sentinel", 1),)),
    "a sentinel and its spare process end": Scene(
        "2+1+1",
        (Call("all_reduce"), Call("ring"), Call("barrier")),
        (Fault(0, "end sentinels", 1), Fault(3, "end sentinels", 2)),
    ),
    "a sentinel ends, in messages": Scene("3x1", (Call("ring"), Call("ring", 1000)), (Fault(0, "end sentinel", 1),)),
    **{
        f"host {rank} of {hosts} loses its sentinel": Scene(hosts, CALLS[:1] * 2, (Fault(rank, "lose sentinel", 1),))
        for hosts, rank in (("1+1", 0), ("1+1", 1), ("3x1", 1))
    },
    "a sentinel stops": Scene("2+1+1", (Call("all_reduce"), Call("barrier")), (Fault(0, "stop sentinel", 1),)),
    "a sentinel stops, in messages": Scene("3x1", (Call("ring"), Call("ring", 1000)), (Fault(2, "stop sentinel", 1),)),
    "a rank is stopped for longer than the others wait": Scene(
        "3", (Call("all_reduce"), Call("barrier")), (Fault(2, "freeze", 1),)
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_scenes(name: str) -> None:
    check(SCENES[name])


def test_scenes_drawn_by_lot() -> None:
    """So many as there is time for, always the same ones first."""
    rng, end = random.Random(11), time.monotonic() + DRAWN_S
    while time.monotonic() < end:
        scene = draw(rng)
        if not scene.frozen:  # these take their time
            check(scene)
