"""Messages from rank to rank, and calls of objects and of many tensors: on a rank, with what must come of them."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch

import unisono
from tests.fuzz.programs import Coalesced, Messages, Objects
from tests.support import oracle
from tests.support.matrix_layouts import Held, differs, pick, readable
from tests.support.reducers_driver import data

FORMS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")

TENSORS = (
    "all_reduce_coalesced", "broadcast_coalesced", "all_gather_coalesced", "reduce_scatter_coalesced",
    "broadcast_module of a mapping", "broadcast_module", "average_parameters", "average_gradients",
)  # fmt: skip
"""The calls of many tensors; the last three take a module, whose parameters are floating point."""

Finish = Callable[[], str]


def thing(rank: int, seed: int, item: int = 0) -> Any:
    count = seed * (rank + 1 + 3 * item) % 4099
    return {"rank": rank, "item": item, "many": list(range(count % 50)), "long": bytes([rank + 1]) * count, "x": None}


def _differ(got: Any, want: Any) -> str:
    return "" if got == want else f"got {got!r:.200} instead of {want!r:.200}"


def exchange_objects(step: Objects, api: Any, group: Any) -> str:
    """Make the call. What is wrong with what this rank gets, or nothing."""
    me, p = api.place(group)
    root = step.root % p
    things, items = [thing(rank, step.seed) for rank in range(p)], [thing(root, step.seed, item) for item in range(3)]
    given, got, want = {
        "all_gather_object": ([things[me]], [None] * p, things),
        "gather_object": ([things[me]], [None] * p if me == root else [], things if me == root else []),
        "broadcast_object_list": ([], [*items] if me == root else [None] * 3, items),
        "scatter_object_list": ([things if me == root else None], [None], [things[me]]),
    }[step.form]
    sides = [*given, got or None] if step.form == "gather_object" else [got, *given]
    api.objects(step.form, *sides, root=None if step.form == "all_gather_object" else root, group=group)
    return _differ(got, want)


class _Part:
    def __init__(self, step: Messages, api: Any, group: Any) -> None:
        self.step, self.api, self.group = step, api, group
        self.me, self.p = api.place(group)
        self.before, self.behind = (self.me - step.shift) % self.p, (self.me + step.shift) % self.p
        self.source, self.target = step.shift % self.p, (step.shift + 1) % self.p
        self.kind = getattr(torch, step.dtype)
        values = enumerate(data(step.dtype, self.p, step.n, step.seed))
        self.values = [readable(v, self._layout(rank, False)).view(self.kind) for rank, v in values]

    def _layout(self, number: int, written: bool) -> str:
        return pick(self.step.layout, number, self.step.n, written)

    def given(self) -> Held:
        return Held(self._layout(self.me, False), self.step.n, self.kind, self.step.shared, self.values[self.me])

    def place(self) -> Held:
        return Held(self._layout(self.me + 1, True), self.step.n, self.kind, self.step.shared, None)

    def do(self, name: str, thing: Any, peer: int | None) -> Any:
        return self.api.p2p(name, thing, peer, self.group, self.step.tag)

    def send(self, target: int) -> Finish:
        given = self.given()
        self.do("send", given.tensor, target)
        return lambda: given.check(None)

    def receive(self, source: int) -> Finish:
        place = self.place()
        found = self.do("recv", place.tensor, source)
        wrong = "" if found == source else f"source {found} instead of {source}"
        return lambda: wrong or place.check(self.values[source])

    def finish(self, works: list[Any], given: Held, places: dict[int, Held]) -> Finish:
        """What waits for these, and looks at what was sent, and at what came from each rank."""

        def finish() -> str:
            for work in works:
                work.wait()
            found = [given.check(None), *(place.check(self.values[rank]) for rank, place in places.items())]
            return "; ".join(filter(None, found))

        return finish


def _nothing() -> str:
    return ""


def _pair(part: _Part, new: bool = False) -> Finish:
    """One rank sends to the next, both in the foreground. new: into a tensor that the call makes, from any rank."""
    if part.me == part.source:
        return part.send(part.target)
    if part.me != part.target:
        return _nothing
    if not new:
        return part.receive(part.source)
    got = part.do("recv", None, None)
    return lambda: differs(got, part.values[part.source])


def _ring(part: _Part) -> Finish:
    """Each rank sends so far, and goes on."""
    given, place = part.given(), part.place()
    works = [part.do("irecv", place.tensor, part.before), part.do("isend", given.tensor, part.behind)]
    return part.finish(works, given, {part.before: place})


def _batch(part: _Part) -> Finish:
    """Each rank sends to all others, in one call."""
    given, places = part.given(), {rank: part.place() for rank in range(part.p) if rank != part.me}
    operations = [("isend", given.tensor, rank) for rank in places]
    operations += [("irecv", place.tensor, rank) for rank, place in places.items()]
    return part.finish(part.api.batch(operations, part.group, part.step.tag), given, places)


def _sendrecv(part: _Part) -> Finish:
    """Each rank sends so far, and receives, in one call in the foreground."""
    given, place = part.given(), part.place()
    unisono.sendrecv(given.tensor, part.behind, place.tensor, part.before, part.group, part.step.tag)
    return part.finish([], given, {part.before: place})


def _any(part: _Part) -> Finish:
    """All send to one rank, which takes what comes."""
    if part.me != part.source:
        return part.send(part.source)
    wrong, left = [], set(range(part.p)) - {part.me}
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
    want = [thing(part.source, part.step.seed, item) for item in range(2)]
    got: list[Any] = [None, None]
    if part.me == part.source:
        part.do("send_object_list", want, part.target)
    elif part.me == part.target:
        part.do("recv_object_list", got, part.source)
        return lambda: _differ(got, want)
    return _nothing


def _chain(part: _Part) -> Finish:
    """Each rank but the first receives from the one before; then each but the last sends to the next."""
    finish = part.receive(part.me - 1) if part.me > 0 else _nothing
    if part.me < part.p - 1:
        part.send(part.me + 1)
    return finish


WAYS: dict[str, Callable[[_Part], Finish]] = {
    "pair": _pair, "new": partial(_pair, new=True), "ring": _ring, "batch": _batch, "sendrecv": _sendrecv, "any": _any,
    "objects": _objects, "chain": _chain,
}  # fmt: skip
"""Who sends how to whom. A group of one rank sends to itself, with ring and sendrecv."""


def send_and_receive(step: Messages, api: Any, group: Any) -> Finish:
    """Make this rank's part. Returns what waits for its end, and says what is wrong, or nothing."""
    return WAYS[step.way](_Part(step, api, group))


class _Module(torch.nn.Module):
    """A module with these parameters, or these gradients of parameters that must not change."""

    def __init__(self, tensors: list[torch.Tensor], gradients: bool) -> None:
        super().__init__()
        for k, tensor in enumerate(tensors):
            parameter = torch.nn.Parameter(torch.zeros_like(tensor) if gradients else tensor)
            parameter.grad = tensor if gradients else None
            self.register_parameter(f"tensor_{k}", parameter)


def coalesced(step: Coalesced, group: Any) -> Finish:
    """Make the call. Returns what waits for its end, and says what is wrong, or nothing."""
    me, p, form, root = group.rank, group.size, step.form, step.root % group.size
    op = "avg" if form.startswith("average") else step.op
    longer = p if form == "reduce_scatter_coalesced" else 1
    inputs = [data(dtype, p, n * longer, step.seed + k, op) for k, (dtype, n) in enumerate(step.parts)]
    kinds = [getattr(torch, dtype) for dtype, _ in step.parts]
    collective = form.removesuffix("_coalesced") if form in TENSORS[:4] else "broadcast"
    collective = "all_reduce" if form in TENSORS[6:] else collective
    ends = [oracle.expected(collective, ranks, op, root, ((len(ranks[0]) // p,) * p,) * p)[me] for ranks in inputs]
    want = [cast(torch.Tensor, end).view(kind) for end, kind in zip(ends, kinds, strict=True)]

    def held(values: torch.Tensor, filled: bool) -> Held:
        layout = "strided" if step.strided else "contiguous"
        return Held(layout, len(values), values.dtype, False, values if filled else None)

    given = [held(ranks[me].view(kind), True) for ranks, kind in zip(inputs, kinds, strict=True)]
    apart = form in ("all_gather_coalesced", "reduce_scatter_coalesced")
    taken = [held(values, False) for values in want] if apart else given
    out, work = [one.tensor for one in taken], None
    if form.endswith("_coalesced"):
        more = {"broadcast_coalesced": [root], "all_gather_coalesced": []}.get(form, [op])
        sides = [out, [one.tensor for one in given]] if apart else [out]
        work = getattr(unisono, form)(*sides, *more, group=group, async_op=step.async_op)
    elif form == "broadcast_module of a mapping":
        unisono.broadcast_module({f"{k}": tensor for k, tensor in enumerate(out)}, root, group)
    else:
        module = _Module(out, form == "average_gradients")
        getattr(unisono, form)(module, *((root,) if form == "broadcast_module" else ()), group=group)

    def finish() -> str:
        if work is not None:
            work.wait()
        found = [one.check(values) for one, values in zip(taken, want, strict=True)]
        return "; ".join(filter(None, found + [one.check(None) for one in given if apart]))

    return finish
