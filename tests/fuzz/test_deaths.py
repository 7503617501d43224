"""Scenes with deaths and other faults: some that are hard, and a share of those that are drawn by lot."""

import random
import re
import time
from dataclasses import replace
from itertools import cycle

import pytest

from tests.conftest import NIGHTLY
from tests.fuzz.deaths import check
from tests.fuzz.fault_scene import AT_REST, COLLECTIVES, ENDS, Call, Fault, Scene, draw, draw_hasty

DRAWN_S = 60.0 if NIGHTLY else 3.0

LONG = 2_000_000  # elements: more than is under way between hosts


def call(text: str) -> Call:
    words, _, members = text.partition(" of ")
    name, _, count = words.partition(" ")
    return Call(name, int(count or 5), tuple(map(int, members.split())))


def fault(text: str) -> Fault:
    found = re.fullmatch(r"(\d+) (\D+) (\d+) ?(.*)", text)
    assert found, text
    rank, how, number, moment = found.groups()
    return Fault(int(rank), how, int(number), moment or "before")


def scene(hosts: str, calls: str | tuple[Call, ...], *faults: str, keep_inputs: bool = False) -> Scene:
    """calls: such as "barrier, ring 1000, all_reduce 4 of 0 2". faults: such as "1 kill 0 row 3"; see `Fault`."""
    some = tuple(map(call, calls.split(", "))) if isinstance(calls, str) else calls
    return Scene(hosts, some, tuple(map(fault, faults)), keep_inputs)


SUM = Call("all_reduce", 4)
CALLS = (
    SUM,
    Call("all_reduce", 60_000),
    Call("all_reduce", 60_000, algorithm="ring"),
    Call("all_reduce", 60_000, shared=True),
    Call("all_reduce", 60_000, background=True),
    Call("broadcast", 60_000),
    Call("barrier"),
)
TWO_SHOT, RING, CHOSEN = ((Call("all_reduce", 3000, algorithm=name),) * 3 for name in ("two_shot", "ring", None))

WAITS = {
    "all_reduce": SUM,
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

AWAITED = (
    ("pair", 4, 1), ("pair", LONG, 0), ("new", 4, 1), ("ring", LONG, 1), ("sendrecv", 4, 1), ("batch", LONG, 0),
    ("objects", 4, 1), ("all_gather_object", 4, 1), ("all_reduce_coalesced", 1000, 0),
)  # fmt: skip
"""Call, elements, and the rank for which the other one waits."""

MEETING = (
    ("3", "2 kill 0 before come"),
    ("3", "2 kill 0 after come"),
    ("3", "1 kill 0 before follow"),
    ("2x2", "3 kill 0 before follow"),
    ("3", "0 kill 0 after place"),
    ("3", "0 freeze 0 after place"),
    ("3", "0 kill 0 after hand out"),
    ("3", "0 kill 0 after meet"),
    ("3", "1 kill 0 after meet"),
    ("3", "0 no memory 0 before hand out"),
    ("2x2", "0 no memory 0 before hand out"),
    ("2x2", "2 kill 0 after listen"),
    ("2x2", "2 no memory 0 before hand out"),
    ("3", "2 no memory 0 before attach"),
    ("1+2", "2 no memory 0 before attach"),
    ("1+2", "1 kill 0 before sentinel"),
    ("3x1", "1 kill 0 before listen"),
    ("3x1", "1 kill 0 before connect"),
    ("3x1", "1 interrupt 0 before connect"),
    ("3x1", "1 time out 0 before connect"),
)

RECOVERING = {
    "two are stopped, one after the other, as they lend": ("5", "4 kill 0", "0 freeze 0 lend", "1 freeze 0 lend"),
    "one is stopped for a moment as it lends": ("3", "2 abort 0 after", "0 pause 0 lend"),
    "the first of a host is stopped as it lends": ("2x2", "2 abort 0 after", "0 freeze 0 lend"),
    "who lends in place of another is stopped": ("2x2", "0 abort 0 after", "2 no memory 0 lend", "3 freeze 0 lend"),
    "one is stopped as it borrows": ("3", "1 abort 0 after", "2 freeze 0 borrow"),
    "interrupted as ranks lend": ("3", "2 abort 0 after", "0 interrupt 0 lend"),
    "interrupted as ranks join": ("3", "2 abort 0 after", "0 interrupt 0 join"),
    "one has no memory": ("3", "1 abort 0 after", "0 no memory 0 lend"),
    "nobody has memory": ("3", "1 abort 0 after", *(f"{rank} no memory 0 lend" for rank in range(3))),
    "one host has no memory": ("1+2", "0 abort 0 after", *(f"{rank} no memory 0 lend" for rank in (1, 2))),
}
"""Hosts, and faults while the ranks recover from the first of them."""

AGAIN = "barrier, all_gather 1000 of 0 2, barrier, all_gather 1000 of 0 2"
THEN = "3 kill 2 after", "2 detour 3 awaited"
WAITING = [
    *(("3", "abort", name) for name in WAITS),
    *(("3", how, name) for how in ("abort by a handler", "Ctrl-C", "kill") for name in [*WAITS][:4]),
    *(("2x1", how, name) for how in ("abort", "Ctrl-C") for name in [*WAITS][:4]),
]

SCENES = {
    **{
        f"{name} waits in a sub-group for a rank that recovers in the world, {hosts}": scene(
            hosts, (Call("barrier"), replace(WAITS[name], members=(0, 2))), "1 kill 0 after", "2 detour 1 awaited"
        )
        for name in ("all_reduce", "all_reduce, later", "ring", "new_group")
        for hosts in ("4", "2x2")
    },
    "a sub-group waits when the world shrinks again": scene("4", AGAIN, "1 kill 0 after", *THEN),
    "the same, and when it has shrunk": scene("4", AGAIN, "1 kill 0 after", "2 detour 1 awaited", *THEN),
    **{
        f"{how} while {name} waits in {hosts}": scene(hosts, (WAITS[name],) * 2, f"0 {how} 1 waiting")
        for hosts, how, name in WAITING
        if how != "Ctrl-C" or WAITS[name].name in COLLECTIVES
    },
    **{
        f"Ctrl-C in the kernel, in {what.name}": scene("2", (what, what), "0 Ctrl-C 1 entered")
        for what in (*[*WAITS.values()][:2], Call("barrier"))
    },
    "left out while it waits in messages": scene("3", "ring 4, ring 4", "1 dismissed 1 waiting"),
    "left out while it waits in a collective": scene("2x2", "all_reduce 4, all_reduce 4", "1 dismissed 1 waiting"),
    "the world is aborted while a sub-group waits": scene(
        "4", "barrier, all_reduce 4 of 0 2", f"1 abort 0 {AT_REST}", "2 detour 1"
    ),
    "aborted while awaited by a rank for which another one waits": scene("3", "barrier, chain", "0 abort 1 awaited"),
    **{
        f"rank 2 of {hosts} is late in {name}": scene(hosts, (what, what), "2 late 1")
        for hosts, name, what in [
            *(("3", f"call {number}", what) for number, what in enumerate(CALLS) if not what.background),
            ("2x2", "all_reduce", SUM),
            ("3", "a sub-group", Call("all_reduce", 4, (1, 2))),
        ]
    },
    "a rank is stopped while the others give up to meet": scene(
        "3", (SUM,), "2 kill 0 after come", "1 pause 0 after come"
    ),
    "killed with the store at which all have met": replace(scene("3", (SUM,) * 2, "0 kill 1"), launched=True),
    **{f"{words}, of {hosts}, as they meet": scene(hosts, (SUM,), words) for hosts, words in MEETING},
    "a rank waits for the message of one that waits for the dead": scene("4", "barrier, chain 1000", "1 kill 1"),
    "the same over hosts": scene("2x2", "barrier, chain 1000", "1 kill 1"),
    "killed in a long call between hosts": scene("2x2", f"all_reduce, all_reduce {LONG}", "3 kill 1 within 0.005"),
    "killed between two calls": scene("2x2", "all_reduce, barrier", "0 kill 0 after"),
    "killed in long messages": scene("3x1", f"ring {LONG}", "1 kill 0 within 0.005"),
    "all go on after an abort": scene("2x2", "broadcast 1000, all_reduce 5 of 0 1 3", "0 abort 0 after"),
    "aborted in a long call between hosts": scene("2x2", f"all_reduce, all_reduce {LONG}", "1 abort 1 within 0.005"),
    "stopped for a moment in a long call": scene("2x1", f"all_reduce {LONG}", "1 pause 0 within 0.002"),
    "two within a call": scene("4", "all_reduce 70000", "1 kill 0 row 3", "2 kill 0 row 2", keep_inputs=True),
    "inputs of a ring are kept": scene("4", (replace(RING[0], count=100_000),), "1 kill 0 row 3", keep_inputs=True),
    **{f"at row {row} between hosts": scene("2x1", "all_reduce 3", f"1 kill 0 row {row}") for row in range(8)},
    **{
        f"{how} at row {row} of two_shot": scene("3", TWO_SHOT, f"1 {how} 1 row {row}")
        for how, row in [*(("kill", row) for row in range(6)), ("os_exit", 2)]
    },
    **{f"{how} at a row": scene("3", RING, f"2 {how} 1 row 3") for how in ("pause", "hold", "delay")},
    **{
        f"{how} before a call": scene(ranks, (what, what), f"1 {how} 1")
        for how, what, ranks in zip(ENDS, cycle(CALLS), cycle("325"), strict=False)
    },
    **{
        f"error at row {row} in {hosts}": scene(hosts, calls, f"0 error 1 row {row}")
        for hosts, calls in (("3", TWO_SHOT), ("2x2", CHOSEN))
        for row in (0, 2, 5)
    },
    "two of five": scene("5", "all_reduce 50000, all_reduce 50000", "0 kill 1", "3 kill 1"),
    "three of six": scene("6", "barrier, barrier", "1 kill 1", "2 kill 1", "5 kill 1"),
    "one after the other": scene("4", "all_reduce, barrier, reduce 1000", "0 kill 0", "3 kill 2"),
    "one while the others recover": scene("4", "all_reduce", "0 os_exit 0", "1 kill 0 lend"),
    **{
        f"{victim} is killed while awaited in {way} {count} of {hosts}": scene(
            hosts, f"{way}, {way} {count}", f"{victim} kill 1 awaited"
        )
        for way, count, victim in AWAITED
        for hosts in ("2", "2x1")
    },
    **{name: scene(hosts, (SUM,), *faults) for name, (hosts, *faults) in RECOVERING.items()},
    **{
        f"hasty ranks of {hosts}, {seed}": draw_hasty(random.Random(seed), hosts)
        for seed in (1, 2)
        for hosts in ("4", "2x2")
    },
    "a sentinel stops for a moment": scene("2x2", "all_reduce, ring 1000", "2 pause sentinel 1"),
    "a rank and a sentinel are killed": scene(
        "2x2", "all_reduce, barrier, ring 1000", "1 kill 1", "0 end sentinel 1", "2 end sentinel 1 after"
    ),
    "a sentinel ends": scene("3x1", "all_reduce, barrier", "2 end sentinel 1"),
    "a sentinel and its spare process end": scene(
        "2+1+1", "all_reduce, ring, barrier", "0 end sentinels 1", "3 end sentinels 2"
    ),
    "the sentinel of an awaited rank ends": scene("2x1", (SUM, SUM), "1 end sentinel 1 awaited"),
    "its spare process ends, too": scene("2x1", (SUM, SUM), "1 end sentinels 1 awaited"),
    "a sentinel ends, in messages": scene("3x1", "ring, ring 1000", "0 end sentinel 1"),
    "the first of two hosts loses its sentinel": scene("1+1", (SUM, SUM), "0 lose sentinel 1"),
    "the second of two hosts loses its sentinel": scene("1+1", (SUM, SUM), "1 lose sentinel 1"),
    "a host of three loses its sentinel": scene("3x1", (SUM, SUM), "1 lose sentinel 1"),
    "a sentinel stops": scene("2+1+1", "all_reduce, barrier", "0 stop sentinel 1"),
    "a sentinel stops, in messages": scene("3x1", "ring, ring 1000", "2 stop sentinel 1"),
    "a rank is stopped for longer than the others wait": scene("3", "all_reduce, barrier", "2 freeze 1"),
}


@pytest.mark.parametrize("name", SCENES)
def test_scenes(name: str) -> None:
    check(SCENES[name])


def test_scenes_drawn_by_lot() -> None:
    """So many as there is time for, always the same ones first."""
    rng, end = random.Random(11), time.monotonic() + DRAWN_S
    while time.monotonic() < end:
        one = draw(rng)
        if not one.frozen:  # these take their time
            check(one)
