"""A scene of the fault fuzzer as data: a world, a short program, and what happens to its ranks. It prints as Python."""

import random
import re
from dataclasses import dataclass, replace
from typing import Any

from tests.fuzz import messages, programs
from tests.fuzz.programs import Barrier, Coalesced, MakeGroup, Messages, Objects, Step
from tests.support.matrix import FORMS, REDUCING, Case
from unisono.schedule import Hosts

COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "scan", "all_gather", "reduce_scatter", "all_to_all", "gather", "barrier",
)  # fmt: skip
OBJECTS, MANY, MESSAGES = messages.FORMS, messages.TENSORS[:4], tuple(messages.WAYS)
ENDS = {
    "kill": "was killed by signal 9 (SIGKILL)",
    "stop and kill": "was killed by signal 9 (SIGKILL)",
    "SIGTERM": "was killed by signal 15 (SIGTERM)",
    "SIGSEGV": "was killed by signal 11 (SIGSEGV)",
    "SIGABRT": "was killed by signal 6 (SIGABRT)",
    "SIGRTMAX": "was killed by signal 64 (SIGRTMAX)",
    "os_exit": "exited with code 3",
    "os_exit well": "exited with code 0",
    "os_exit of a thread": "exited with code 5",
    "exec": "runs another program now, or has closed its descriptors",
    "exit": "raised SystemExit: 3",
    "raise": "raised RuntimeError: drawn by lot",
    "return": "returned from the function",
}
"""Faults after which a rank does not come back, and what the others are told."""
DEADLY = tuple(ENDS)
IN_ITS_THREAD = ("exit", "raise", "return")
"""Those that only the thread of the rank's program can do: between calls."""
STOPPING = ("stop and kill", "pause", "freeze", "pause sentinel", "stop sentinel")
"""pause: SIGSTOP for a moment. freeze: SIGSTOP until all others have ended, which is longer than the time-out. The
sentinel is that of the rank's host.
"""
LATE = ("hold", "delay")
"""The rank comes late by `LATE_S`, with the GIL or without it: at a row, as after a pause."""
LATE_S = 0.1
STEPS = ("lend", "borrow", "tell", "join")
"""Steps of a recovery: the first survivor of a host lends the memory of the smaller group, the others borrow it; each
tells the others its proposals; and joins the smaller group.
"""
RAISED = ("no memory", "interrupt", "time out")
"""What such a step may raise: OutOfMemory; KeyboardInterrupt, after which the rank makes the call again; or WaitTimeout
for the next rank.
"""
TOLD = {
    "abort": "drawn by lot",
    "abort by a handler": "drawn by lot",
    "Ctrl-C": "KeyboardInterrupt",
    "error": "ValueError",
}
"""Faults after which a rank gives its group up, though it goes on, and what the others are told."""
AT_REST = "within 1.0"
"""A moment when all ranks wait, if their calls are that short."""
HARMLESS = ("pause sentinel", "end sentinel", "end sentinels", "stop sentinel")
"""Faults that no rank may notice: another process goes on in place of the sentinel. end sentinels: it is killed, and so
is the process that waits beside it.
"""
BRIEF = ("brief cut", "loose cable", "loose link")
"""Faults of hosts in network namespaces that cost nothing. brief cut: the host reaches no other, a second less than
hosts may be silent. loose cable: it does so for some milliseconds, again and again. loose link: the same, but nothing
can be sent.
"""
UNNOTICED = (*HARMLESS, *BRIEF)
OF_SENTINELS = ("lose sentinel",)
"""Faults that cost a host its sentinel: both processes are killed, and no rank can start them again."""
OF_HOSTS = ("cut link", "cut pair", "stop host")
"""Of hosts in network namespaces: the rank's host reaches no other, or not the host before; all its processes stop.
They are mended when all ranks that go on have ended.
"""
_COUNTS = (1, 5, 1000, 70_000, 200_000)


@dataclass(frozen=True)
class Call:
    """One operation. members: ranks of the world; (): all. shared: its tensors lie in shared memory."""

    name: str
    count: int = 5
    members: tuple[int, ...] = ()
    shared: bool = False
    background: bool = False
    algorithm: str | None = None

    def step(self, number: int) -> Step:
        how: Any = {"root": number, "seed": number}
        later: Any = {"async_op": self.background}
        if self.name == "barrier":
            return Barrier(algorithm=self.algorithm, **later)
        if self.name == "new_group":
            return MakeGroup("made", self.members or (0,))
        if self.name in MESSAGES:
            return Messages(self.name, "int64", self.count, 0, shared=self.shared, seed=number)
        if self.name in OBJECTS:
            return Objects(self.name, **how)
        if self.name in MANY:
            return Coalesced(self.name, (("int64", self.count), ("float32", 3)), **later, **how)
        form = f"{self.name}_single" if f"{self.name}_single" in FORMS else self.name
        op = "sum" if form in REDUCING else "-"
        case = Case(form, "int64", op, self.count, shared=self.shared, **later, **how)
        return programs.Call(case, algorithm=self.algorithm)


@dataclass(frozen=True)
class Fault:
    """What happens to a rank of the world, in or beside the call of this number.

    how: one of the words above. `detour`: a barrier of the world. `dismissed`: it waits, and the others leave it out.
    `late`: it comes when the others' time is up. `mismatch`, `refuse`: it makes another call, or a wrong one.

    moment: `before` or `after` the call, before it and `awaited` by all other ranks, at `row 3` of its program, or
    `within 0.002` seconds of its begin; or as soon as it has `entered` the call, or is `waiting` in Python for the
    others, which come after the fault. Or while it recovers from another rank's failure: `shrink 0.002` seconds after
    it has begun to, or at one of `STEPS`, such as `lend`, or at its third proposal, `tell 2`. Or while the ranks meet,
    before or after such a step, as in `after come`: see `tests.fuzz.fault_moments`.
    """

    rank: int
    how: str
    call: int = 0
    moment: str = "before"

    @property
    def where(self) -> int | str:
        if self.moment.partition(" ")[0] in ("shrink", *STEPS):
            return "recovery"
        return "meeting" if self.moment.startswith(("before ", "after ")) else self.call


@dataclass(frozen=True)
class Scene:
    """hosts: `4`: four ranks on one host; `2x2`: four on two.

    hasty: a rank that recovers waits for a moment only, and leaves out whoever is late.
    launched: ranks meet at a store that rank 0 serves, as if a launcher had started them.
    """

    hosts: str
    calls: tuple[Call, ...]
    faults: tuple[Fault, ...] = ()
    keep_inputs: bool = False
    hasty: bool = False
    launched: bool = False

    def __post_init__(self) -> None:
        if any(fault.call >= len(self.calls) for fault in self.faults):
            raise ValueError(f"a fault is in no call: {self}")

    @property
    def shape(self) -> Hosts:
        return Hosts.parse(self.hosts)

    @property
    def ranks(self) -> int:
        return self.shape.ranks

    @property
    def dead(self) -> set[int]:
        return {fault.rank for fault in self.faults if fault.how in DEADLY}

    @property
    def lost(self) -> set[int]:
        """The ranks of hosts that are cut off, or stopped, or lose their sentinel."""
        hit = [fault.rank for fault in self.faults if fault.how in (*OF_SENTINELS, *OF_HOSTS)]
        return {rank for one in hit for rank in self.shape.beside(one)}

    @property
    def cut_off(self) -> set[int]:
        """The ranks of hosts that the others lose; all, where neither most hosts are left nor half with the first."""
        hosts = self.shape.members
        left = [host for host in hosts if not self.lost & {*host}]
        goes_on = 2 * len(left) + (hosts[0] in left) > len(hosts)
        return self.lost if goes_on else {*range(self.ranks)}

    @property
    def meets(self) -> bool:
        return any(fault.where == "meeting" for fault in self.faults)

    def next_to(self, fault: Fault) -> int:
        return (fault.rank + 1) % self.ranks

    @property
    def times_out(self) -> bool:
        return any(fault.how == "freeze" or fault.moment == "before come" for fault in self.faults)

    @property
    def late(self) -> bool:
        """Does a rank come to a call when the time of the others is up?"""
        return any(fault.how == "late" for fault in self.faults)

    @property
    def late_to_shrink(self) -> bool:
        """Is a rank stopped for longer than the others wait, while it recovers with them?"""
        return any(fault.how == "freeze" and fault.where == "recovery" for fault in self.faults)

    @property
    def frozen(self) -> set[int]:
        """The ranks that are stopped for longer than the others wait, or dismissed."""
        return {fault.rank for fault in self.faults if fault.how in ("freeze", "dismissed")}


def _read_call(text: str) -> Call:
    words, _, members = text.partition(" of ")
    name, _, count = words.partition(" ")
    return Call(name, int(count or 5), tuple(map(int, members.split())))


def _read_fault(text: str) -> Fault:
    found = re.fullmatch(r"(\d+) (\D+) (\d+) ?(.*)", text)
    assert found, text
    rank, how, number, moment = found.groups()
    return Fault(int(rank), how, int(number), moment or "before")


def scene(hosts: str, calls: str | tuple[Call, ...], *faults: str, keep_inputs: bool = False) -> Scene:
    """calls: such as "barrier, ring 1000, all_reduce 4 of 0 2". faults: such as "1 kill 0 row 3"; see `Fault`."""
    some = tuple(map(_read_call, calls.split(", "))) if isinstance(calls, str) else calls
    return Scene(hosts, some, tuple(map(_read_fault, faults)), keep_inputs)


def draw_hasty(rng: random.Random, hosts: str) -> Scene:
    """A scene in which three of four hasty ranks are stopped for a moment while they agree."""
    faults = [Fault(rank, "pause", 0, f"tell {rng.randrange(5)}") for rank in range(3)]
    return Scene(hosts, (Call("barrier"), Call("all_reduce")), (Fault(3, "abort", 0, "after"), *faults), hasty=True)


def draw(rng: random.Random) -> Scene:
    """A scene in which something happens to one rank or two, or to all but one that are hasty."""
    if rng.random() < 0.1:
        return draw_hasty(rng, rng.choice(["4", "2x2"]))
    hosts = rng.choice(["2", "3", "4", "4", "6", "2x1", "3x1", "2x2", "2x2", "3+1", "2x3"])
    ranks, spans = range(Hosts.parse(hosts).ranks), Hosts.parse(hosts).spans
    calls = tuple(_draw_call(rng, len(ranks)) for _ in range(rng.randint(1, 6)))
    scene = Scene(hosts, calls, keep_inputs=rng.random() < 0.3)
    if rng.random() < 0.15:  # to a rank that waits or is awaited
        moment, call = rng.choice(["awaited", "waiting"]), replace(calls[0], name=rng.choice(COLLECTIVES), members=())
        hows = ["abort", "kill", "SIGTERM", *(["abort by a handler", "Ctrl-C"] if moment == "waiting" else [])]
        return replace(scene, calls=(call, call), faults=(Fault(rng.choice(ranks), rng.choice(hows), 1, moment),))
    if rng.random() < 0.25:
        return replace(scene, faults=(_lively(rng, scene),))
    victims = rng.sample(ranks, min(rng.choice([1, 1, 1, 2]), len(ranks) - 1))
    others = [rank for rank in ranks if rank not in victims]
    faults = [_fault(rng, calls, rank, ["kill", "kill", *DEADLY]) for rank in victims]
    if spans and rng.random() < 0.4:
        faults.append(_fault(rng, calls, rng.choice(others), HARMLESS))
    if rng.random() < 0.25 and len(others) > 1:
        how = rng.choice(["kill", "pause", "stop and kill", "freeze", "freeze"])
        delay = f"shrink {rng.choice([0.0, rng.random() * 0.01]):.4f}"
        moment = rng.choice(["lend", "borrow", "join", f"tell {rng.randrange(5)}", delay, delay, delay])
        faults.append(Fault(rng.choice(others), how, 0, moment))
    return replace(scene, faults=tuple(faults))


def _draw_call(rng: random.Random, ranks: int) -> Call:
    name = rng.choice(rng.choice([COLLECTIVES] * 7 + [OBJECTS, MANY, MESSAGES]))
    members: tuple[int, ...] = ()
    if ranks > 2 and rng.random() < 0.25:
        members = tuple(sorted(rng.sample(range(ranks), rng.randint(2, ranks - 1))))
    background = name in (*COLLECTIVES, *MANY) and rng.random() < 0.3
    return Call(name, rng.choice(_COUNTS), members, rng.random() < 0.3, background)


def _fault(rng: random.Random, calls: tuple[Call, ...], rank: int, hows: tuple[str, ...] | list[str]) -> Fault:
    number, how = rng.randrange(len(calls)), rng.choice(hows)
    moments = ["before", "after"]
    if how not in IN_ITS_THREAD:
        moments += [f"within {rng.random() * rng.choice([0.001, 0.01]):.4f}"]
    if calls[number].name in COLLECTIVES and how in ("kill", "os_exit"):
        moments += [f"row {rng.randrange(8)}"] * 2
    return Fault(rank, how, number, rng.choice(moments))


def _lively(rng: random.Random, scene: Scene) -> Fault:
    number, rank = rng.randrange(len(scene.calls)), rng.randrange(scene.ranks)
    collective = [call.name in COLLECTIVES and not call.members for call in scene.calls]
    if collective[number] and rng.random() < 0.4:
        how = rng.choice(["error", "mismatch", "refuse"])
        return Fault(rank, how, number, f"row {rng.randrange(2)}" if how == "error" else "before")
    if scene.shape.spans and rng.random() < 0.4:
        return _fault(rng, scene.calls, rank, HARMLESS)
    return _fault(rng, scene.calls, rank, ["pause", "abort", *["freeze"] * all(collective)])
