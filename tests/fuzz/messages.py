"""Messages from rank to rank, and the calls of objects: on a rank, with what must arrive."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import unisono
from tests.fuzz.programs import Messages, Objects
from tests.support.matrix_layouts import Held, differs, pick, readable
from tests.support.reducers_driver import data
from unisono.engine.reducers import DTYPES

FORMS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")

Finish = Callable[[], str]


def thing(rank: int, seed: int, item: int = 0) -> Any:
    """An object that a rank passes."""
    count = seed * (rank + 1 + 3 * item) % 4099
    return {"rank": rank, "item": item, "many": list(range(count % 50)), "long": bytes([rank + 1]) * count, "x": None}


def exchange_objects(step: Objects, api: Any, group: Any) -> str:
    """Make the call. What is wrong with what this rank gets, or nothing."""
    me, p = api.place(group)
    root = step.root % p
    things = [thing(rank, step.seed) for rank in range(p)]
    if step.form == "all_gather_object":
        got: list[Any] = [None] * p
        api.objects(step.form, got, things[me], root=None, group=group)
        want: Any = things
    elif step.form == "gather_object":
        got = [None] * p if me == root else []
        api.objects(step.form, things[me], got or None, root=root, group=group)
        want = things if me == root else []
    elif step.form == "broadcast_object_list":
        want = [thing(root, step.seed, item) for item in range(3)]
        got = list(want) if me == root else [None] * 3
        api.objects(step.form, got, root=root, group=group)
    else:
        got, want = [None], [things[me]]
        api.objects(step.form, got, things if me == root else None, root=root, group=group)
    return "" if got == want else f"got {got!r:.200} instead of {want!r:.200}"


class _Part:
    """What a rank sends and receives in one step."""

    def __init__(self, step: Messages, api: Any, group: Any) -> None:
        self.step, self.api, self.group = step, api, group
        self.me, self.p = api.place(group)
        self.kind = getattr(torch, step.dtype)
        name = step.dtype if step.dtype in DTYPES else f"uint{8 * self.kind.itemsize}"
        drawn = data(name, self.p, step.n, step.seed)
        self.values = [readable(v, self._layout(rank, False)).view(self.kind) for rank, v in enumerate(drawn)]

    def _layout(self, number: int, written: bool) -> str:
        return pick(self.step.layout, number, self.step.n, written)

    def given(self) -> Held:
        return Held(self._layout(self.me, False), self.step.n, self.kind, self.step.shared, self.values[self.me])

    def place(self) -> Held:
        return Held(self._layout(self.me + 1, True), self.step.n, self.kind, self.step.shared, None)

    def do(self, name: str, tensor: Any, peer: int | None) -> Any:
        return self.api.p2p(name, [tensor, peer], self.group, self.step.tag)


def _pair(part: _Part, new: bool = False) -> Finish:
    """One rank sends to the next, both in the foreground. new: into a tensor that the call makes, from any rank."""
    source, target = part.step.shift % part.p, (part.step.shift + 1) % part.p
    if part.me == source:
        given = part.given()
        part.do("send", given.tensor, target)
        return lambda: given.check(None)
    if part.me == target and new:
        got = part.do("recv", None, None)
        return lambda: differs(got, part.values[source])
    if part.me == target:
        place = part.place()
        found = part.do("recv", place.tensor, source)
        wrong = "" if found == source else f"source {found} instead of {source}"
        return lambda: wrong or place.check(part.values[source])
    return lambda: ""


def _ring(part: _Part) -> Finish:
    """Each rank sends so far, and goes on."""
    before, behind = (part.me - part.step.shift) % part.p, (part.me + part.step.shift) % part.p
    given, place = part.given(), part.place()
    works = [part.do("irecv", place.tensor, before), part.do("isend", given.tensor, behind)]

    def finish() -> str:
        for work in works:
            work.wait()
        return given.check(None) or place.check(part.values[before])

    return finish


def _batch(part: _Part) -> Finish:
    """Each rank sends to all others, in one call."""
    others = [rank for rank in range(part.p) if rank != part.me]
    given, places = part.given(), [part.place() for _ in others]
    wanted = [("irecv", place.tensor, rank) for place, rank in zip(places, others, strict=True)]
    works = part.api.batch([("isend", given.tensor, rank) for rank in others] + wanted, part.group, part.step.tag)

    def finish() -> str:
        for work in works:
            work.wait()
        found = [place.check(part.values[rank]) for place, rank in zip(places, others, strict=True)]
        return given.check(None) or "; ".join(filter(None, found))

    return finish


def _sendrecv(part: _Part) -> Finish:
    """Each rank sends so far, and receives, in one call in the foreground."""
    before, behind = (part.me - part.step.shift) % part.p, (part.me + part.step.shift) % part.p
    given, place = part.given(), part.place()
    unisono.sendrecv(given.tensor, behind, place.tensor, before, part.group, part.step.tag)
    return lambda: given.check(None) or place.check(part.values[before])


def _any(part: _Part) -> Finish:
    """All send to one rank, which takes what comes."""
    root = part.step.shift % part.p
    if part.me != root:
        given = part.given()
        part.do("send", given.tensor, root)
        return lambda: given.check(None)
    wrong, left = [], set(range(part.p)) - {root}
    while left:
        place = part.place()
        source = part.do("recv", place.tensor, None)
        if source not in left:
            return lambda: f"source {source}, of {left}"
        left.remove(source)
        wrong.append(place.check(part.values[source]))
    return lambda: "; ".join(filter(None, wrong))


def _objects(part: _Part) -> Finish:
    """As _pair, with objects."""
    source, target = part.step.shift % part.p, (part.step.shift + 1) % part.p
    want = [thing(source, part.step.seed, item) for item in range(2)]
    got: list[Any] = [None, None]
    if part.me == source:
        part.do("send_object_list", want, target)
    elif part.me == target:
        part.do("recv_object_list", got, source)
        return lambda: "" if got == want else f"got {got!r:.200} instead of {want!r:.200}"
    return lambda: ""


def _chain(part: _Part) -> Finish:
    """Each rank but the first receives from the one before; then each but the last sends to the next."""
    wrong = ""
    if part.me > 0:
        place = part.place()
        part.do("recv", place.tensor, part.me - 1)
        wrong = place.check(part.values[part.me - 1])
    if part.me < part.p - 1:
        part.do("send", part.given().tensor, part.me + 1)
    return lambda: wrong


WAYS: dict[str, Callable[[_Part], Finish]] = {
    "pair": _pair, "new": partial(_pair, new=True), "ring": _ring, "batch": _batch, "sendrecv": _sendrecv, "any": _any,
    "objects": _objects, "chain": _chain,
}  # fmt: skip
"""Who sends how to whom. A group of one rank sends to itself, with ring and sendrecv."""


def send_and_receive(step: Messages, api: Any, group: Any) -> Finish:
    """Make this rank's part. Returns what waits for its end, and says what is wrong, or nothing."""
    return WAYS[step.way](_Part(step, api, group))
