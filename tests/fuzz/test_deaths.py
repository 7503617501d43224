"""Scenes with deaths and other faults: some that are hard, and a share of those that `tests.fuzz.deaths` draws."""

import random
import time
from itertools import cycle

import pytest

from tests.conftest import NIGHTLY
from tests.fuzz.deaths import check
from tests.fuzz.fault_scene import AT_REST, COLLECTIVES, ENDS, Call, Fault, Scene, draw, draw_hasty

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


WAITS = {
    "all_reduce": Call("all_reduce", 4),
    "all_reduce, shared": Call("all_reduce", 60_000, shared=True),
    "all_reduce, later": Call("all_reduce", 60_000, background=True),
    "all_to_all": Call("all_to_all", 5),
    "all_gather_object": Call("all_gather_object"),
    "ring": Call("ring", 4),
    "pair": Call("pair", LONG),
    "all_reduce_coalesced": Call("all_reduce_coalesced", 5),
    "sendrecv": Call("sendrecv", 4),
    "batch": Call("batch", 4),
    "new_group": Call("new_group"),
}
"""Calls in which rank 0 waits for rank 1."""

MEETING = (
    ("3", 2, "kill", "before come"),
    ("3", 2, "kill", "after come"),
    ("3", 1, "kill", "before follow"),
    ("2x2", 3, "kill", "before follow"),
    ("3", 0, "kill", "after place"),
    ("3", 0, "freeze", "after place"),
    ("3", 0, "kill", "after hand out"),
    ("3", 0, "kill", "after meet"),
    ("3", 1, "kill", "after meet"),
    ("3", 0, "no memory", "before hand out"),
    ("2x2", 0, "no memory", "before hand out"),
    ("2x2", 2, "kill", "after listen"),
    ("2x2", 2, "no memory", "before hand out"),
    ("3", 2, "no memory", "before attach"),
    ("1+2", 2, "no memory", "before attach"),
    ("1+2", 1, "kill", "before sentinel"),
    ("3x1", 1, "kill", "before listen"),
    ("3x1", 1, "kill", "before connect"),
    ("3x1", 1, "interrupt", "before connect"),
    ("3x1", 1, "time out", "before connect"),
)


def three_sums(algorithm: str | None) -> tuple[Call, ...]:
    return (Call("all_reduce", 3000, algorithm=algorithm),) * 3


SCENES = {
    **{
        f"{name} waits in a sub-group for a rank that recovers in the world, {hosts}": Scene(
            hosts,
            (Call("barrier"), WAITS[name]._replace(members=(0, 2))),
            (Fault(1, "kill", 0, "after"), Fault(2, "detour", 1, "awaited")),
        )
        for name in ("all_reduce", "all_reduce, later", "ring", "new_group")
        for hosts in ("4", "2x2")
    },
    **{
        f"a sub-group waits when the world shrinks again, {shrunk}": Scene(
            "4",
            (Call("barrier"), Call("all_gather", 1000, (0, 2)), Call("barrier"), Call("all_gather", 1000, (0, 2))),
            (
                Fault(1, "kill", 0, "after"),
                *([Fault(2, "detour", 1, "awaited")] if shrunk else []),
                Fault(3, "kill", 2, "after"),
                Fault(2, "detour", 3, "awaited"),
            ),
        )
        for shrunk in (False, True)
    },
    **{
        f"{how} while {name} waits in {hosts}": Scene(hosts, (call, call), (Fault(0, how, 1, "waiting"),))
        for hosts, hows in (("3", ("abort", "abort by a handler", "Ctrl-C", "kill")), ("2x1", ("abort", "Ctrl-C")))
        for how in hows
        for name, call in [*WAITS.items()][: None if (hosts, how) == ("3", "abort") else 4]
        if how != "Ctrl-C" or call.name in COLLECTIVES
    },
    **{
        f"Ctrl-C in the kernel, in {call.name}": Scene("2", (call, call), (Fault(0, "Ctrl-C", 1, "entered"),))
        for call in (*[*WAITS.values()][:2], Call("barrier"))
    },
    **{
        f"rank 1 of {hosts} is left out while it waits in {name}": Scene(
            hosts, (call, call), (Fault(1, "dismissed", 1, "waiting"),)
        )
        for hosts, name, call in (("3", "ring", Call("ring", 4)), ("2x2", "all_reduce", Call("all_reduce", 4)))
    },
    "the world is aborted while a sub-group waits": Scene(
        "4", (Call("barrier"), Call("all_reduce", 4, (0, 2))), (Fault(1, "abort", 0, AT_REST), Fault(2, "detour", 1))
    ),
    "aborted while awaited by a rank for which another one waits": Scene(
        "3", (Call("barrier"), Call("chain")), (Fault(0, "abort", 1, "awaited"),)
    ),
    **{
        f"rank 2 of {hosts} is late in {name}": Scene(hosts, (call, call), (Fault(2, "late", 1),))
        for hosts, name, call in [
            *(("3", f"call {number}", call) for number, call in enumerate(CALLS) if not call.background),
            ("2x2", "all_reduce", WAITS["all_reduce"]),
            ("3", "a sub-group", Call("all_reduce", 4, (1, 2))),
        ]
    },
    "a rank is stopped while the others give up to meet": Scene(
        "3", CALLS[:1], (Fault(2, "kill", 0, "after come"), Fault(1, "pause", 0, "after come"))
    ),
    "killed with the store at which all have met": Scene("3", CALLS[:1] * 2, (Fault(0, "kill", 1),), launched=True),
    **{
        f"{how} {moment}, {rank} of {hosts}": Scene(hosts, CALLS[:1], (Fault(rank, how, 0, moment),))
        for hosts, rank, how, moment in MEETING
    },
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
    **{
        f"error at row {row} in {hosts}": Scene(hosts, three_sums(how), (Fault(0, "error", 1, f"row {row}"),))
        for hosts, how in (("3", "two_shot"), ("2x2", None))
        for row in (0, 2, 5)
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
    **{
        f"{how} of a rank that is awaited": Scene("2x1", CALLS[:1] * 2, (Fault(1, how, 1, "awaited"),))
        for how in ("end sentinel", "end sentinels")
    },
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
