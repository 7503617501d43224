"""Say whether an answer is right, as cheap as the library's table, and if not, which usual mistake it has.

Every element of a tensor says where it comes from: its place, and how often each rank's part is in it. What each
message brings is compared with what the solution sends. The first difference names the mistake.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch

import unisono
from unisono.schedule import REDUCING, Schedule, count
from unisono.schedule.algorithms import CATALOGUE

from .net import Answer, Here, Mistake, World
from .solutions import answers as solutions

EXERCISES = {
    "naive_all_reduce": "all_reduce.naive",
    "ring_reduce_scatter": "reduce_scatter.ring",
    "ring_all_gather": "all_gather.ring",
    "ring_all_reduce": "all_reduce.ring",
    "tree_all_reduce": "all_reduce.tree",
    "pipeline_broadcast": "broadcast.chain",
    "bruck_all_gather": "all_gather.bruck",
    "halving_doubling_all_reduce": "all_reduce.rabenseifner",
    "scatter_all_gather_broadcast": "broadcast.scatter_all_gather",
    "pairwise_all_to_all": "all_to_all.pairwise",
    "hillis_steele_scan": "scan.hillis_steele",
    "dissemination_barrier": "barrier.dissemination",
}
"""The algorithms of the library whose rounds and bytes an answer may take."""

POWERS = {"halving_doubling_all_reduce"}
"""These are for powers of two only."""

HINTS = {
    "not written yet": "Write it in answers.py.",
    "an exception": "It shows with these numbers of ranks and elements.",
    "no such rank": "After the last rank comes the first: (rank + 1) % net.ranks.",
    "a message to itself": "A rank keeps its own part without a message.",
    "all send first": "A send waits for its receive: use isend, and wait after the receive.",
    "all receive first": "No rank has sent yet. Start a send with isend before the receive.",
    "a circle of waits": "Each waits for a rank that waits for another one.",
    "waits for a rank that has ended": "Each receive needs a send to this rank, and each send a receive.",
    "another size": "Sender and receiver must mean the same chunk.",
    "nobody receives it": "Each send needs a matching receive on the destination rank.",
    "nobody waits for it": "Call wait() on the result of isend.",
    "changed while it was sent": "A tensor belongs to its isend until wait() has returned: send a copy, or wait first.",
    "wrong neighbour": "The algorithm has no message from this rank to that one.",
    "too few rounds": "What this rank needs has not travelled far enough.",
    "added twice": "Each rank's part comes in once.",
    "added instead of copied": "A whole sum replaces what a rank has.",
    "copied instead of added": "A partial sum was overwritten: add what comes to what is there.",
    "an old value": "What came in before must be in this: add it, and pass on the sum.",
    "off by one chunk": "The chunk after or before this one is due.",
    "another chunk": "This is due in another place.",
    "a rank too many": "The part of this rank does not belong here.",
    "never written": "Nothing has been put here.",
    "sizes that do not divide": "Chunks differ by one element, or are empty: take their sizes from tensor_split.",
    "powers of two only": "With other numbers of ranks a peer may not exist, or have less.",
    "one rank alone": "A single rank has no peer. Send and wait for nothing.",
    "too many rounds": "A rank waits where it could send, or sends one by one what others could pass on.",
    "too few pieces": "A rank waits for a whole vector, where it could pass on the first piece.",
    "too many bytes": "A whole vector is sent where a chunk is enough, or a chunk more than once.",
}
"""What to do about each usual mistake."""

CASES = [(4, 32), (2, 16), (8, 64), (3, 24), (5, 40), (6, 48), (4, 35), (8, 67), (3, 26), (5, 3), (4, 1), (1, 8)]
"""Numbers of ranks and of elements."""

_SHIFT, _BITS, _EMPTY = 24, 4, -1


class Content(NamedTuple):
    """Of an element: the chunk from which it comes, and how often each rank's part is in it. chunk < 0: nothing."""

    chunk: int
    parts: tuple[int, ...]

    @property
    def ranks(self) -> set[int]:
        return {rank for rank, times in enumerate(self.parts) if times}


def check(name: str, answer: Answer) -> None:
    """Raise Mistake unless the answer is right in all cases, and takes no more rounds and bytes than the library's."""
    passed: set[int] = set()
    for ranks, elements in CASES:
        if (ranks & (ranks - 1) and name in POWERS) or (elements % ranks and "all_to_all" in name):
            continue
        try:
            _check_case(name, answer, ranks, elements)
        except Mistake as mistake:
            kind = mistake.name
            if ranks == 1:
                kind = "one rank alone"
            elif elements % ranks:
                kind = "sizes that do not divide"
            elif ranks & (ranks - 1) and passed == {2, 4, 8}:
                kind = "powers of two only"
            where = mistake.where if kind == mistake.name else f"{mistake.name}: {mistake.where}"
            raise Mistake(kind, f"{where} [ranks: {ranks}, elements: {elements}]. {HINTS[kind]}") from None
        passed.add(ranks)


def check_here(name: str, answer: Answer) -> None:
    """Run the answer on this rank of unisono's group, and compare what it has then."""
    net = Here(unisono.get_rank(), unisono.get_world_size(), unisono.send, unisono.recv, unisono.isend)
    tensors, wanted = _tensors(CATALOGUE[EXERCISES[name]].schedule(net.ranks), 8 * net.ranks)
    answer(net, tensors[net.rank])
    if ((tensors[net.rank] != wanted[net.rank]) & (wanted[net.rank] != _EMPTY)).any():
        raise Mistake("another chunk", f"rank {net.rank} of {net.ranks} real ranks")


def _check_case(name: str, answer: Answer, ranks: int, elements: int) -> None:
    table, world, reference = CATALOGUE[EXERCISES[name]].schedule(ranks), World(ranks), World(ranks)
    tensors, wanted = _tensors(table, elements)
    reference.run(getattr(solutions, name), _tensors(table, elements)[0])
    known: dict[tuple[int, int], list[torch.Tensor]] = {}
    for message in reference.messages:
        known.setdefault((message.src, message.dst), []).append(message.content)
    try:
        world.run(answer, tensors)
    except Mistake as mistake:
        if world.pairs() - known.keys() and "waits" in mistake.where and not ranks & (ranks - 1):
            raise Mistake("wrong neighbour", mistake.where) from None
        raise
    for rank, (tensor, want) in enumerate(zip(tensors, wanted, strict=True)):
        wrong = ((tensor != want) & (want != _EMPTY)).nonzero().flatten().tolist()
        if wrong or (table.collective == "barrier" and len(world.nets[rank].heard) < ranks):
            raise _diagnosis(table, world, known, tensor, want, rank, [*wrong, 0][0])
    if elements % ranks == 0:
        _check_costs(name, table, world, answer, elements)


def _check_costs(name: str, table: Schedule, world: World, answer: Answer, elements: int) -> None:
    costs = count(table)
    if world.end > costs.rounds * costs.ports:
        raise Mistake("too many rounds", f"{world.end}, where {costs.rounds * costs.ports} are enough")
    sent = [sum(m.content.numel() for m in world.messages if m.src == net.rank) / elements for net in world.nets]
    if max(sent) > costs.most_sent + 1e-9:
        rank, most = sent.index(max(sent)), costs.most_sent
        raise Mistake("too many bytes", f"rank {rank} sends {sent[rank]:.3g} m, where {most:.3g} m are enough")
    mine, best = World(table.ranks, by_element=True), World(table.ranks, by_element=True)
    mine.run(answer, _tensors(table, elements)[0])
    best.run(getattr(solutions, name), _tensors(table, elements)[0])
    if mine.end > 1.5 * best.end:
        raise Mistake("too few pieces", f"takes the time of {mine.end} elements, where that of {best.end} is enough")


def _tensors(table: Schedule, elements: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What ranks have, and what they must have afterwards: _EMPTY is nothing, or anything."""
    p, kind = table.ranks, table.collective
    every = [(1 << _SHIFT + _BITS * rank) + torch.arange(elements) for rank in range(p)]
    nothing = torch.full((elements,), _EMPTY)
    owner = torch.cat([torch.full((len(part),), rank) for rank, part in enumerate(nothing.tensor_split(p))])
    mine = [owner == rank for rank in range(p)]
    whole = torch.stack(every).sum(0)
    if kind == "all_gather":
        whole = torch.stack(every).gather(0, owner[None])[0]
        return [torch.where(mine[rank], every[rank], nothing) for rank in range(p)], [whole] * p
    if kind == "broadcast":
        return [every[0].clone(), *(nothing.clone() for _ in range(p - 1))], [every[0]] * p
    if kind == "reduce_scatter":
        return every, [torch.where(mine[rank], whole, nothing) for rank in range(p)]
    if kind == "scan":
        return every, list(torch.stack(every).cumsum(0))
    if kind == "all_to_all":
        return every, [torch.cat([one.tensor_split(p)[rank] for one in every]) for rank in range(p)]
    return every, [whole if kind == "all_reduce" else nothing] * p


def _contents(table: Schedule, tensor: torch.Tensor, *, elements: int) -> list[Content]:
    found = []
    for value in tensor.flatten().tolist():
        parts = tuple(value >> _SHIFT + _BITS * rank & (1 << _BITS) - 1 for rank in range(table.ranks))
        place = (value & (1 << _SHIFT) - 1) // max(1, sum(parts))
        found.append(Content(_EMPTY if value < 0 or not any(parts) else place * table.chunks // elements, parts))
    return found


def _diagnosis(
    table: Schedule, world: World, known: dict[tuple[int, int], list[torch.Tensor]],
    tensor: torch.Tensor, want: torch.Tensor, rank: int, place: int,
) -> Mistake:  # fmt: skip
    """The first message that differs from the solution's, or else what is wrong at this place of this rank."""
    of = partial(_contents, table, elements=len(tensor))
    if strays := world.pairs() - known.keys() if not table.ranks & (table.ranks - 1) else None:
        return Mistake("wrong neighbour", "rank {} sends to rank {}".format(*min(strays)))
    for message in sorted(world.messages, key=lambda m: (m.taken, m.dst)):
        expected = known[pair].pop(0) if known.get(pair := (message.src, message.dst)) else message.content
        if len(expected) == len(message.content):
            for name in map(partial(_difference, table, message.src), of(message.content), of(expected)):
                if name:
                    return Mistake(name, f"in a message from rank {pair[0]} to rank {pair[1]} ({message.line})")
    if missing := sorted(pair for pair, messages in known.items() if messages):
        return Mistake("too few rounds", "a message from rank {} to rank {} is missing".format(*missing[0]))
    name = _difference(table, rank, of(tensor)[place], of(want)[place]) or "another chunk"
    return Mistake(name, f"in element {place} of rank {rank}")


def _difference(table: Schedule, rank: int, actual: Content, want: Content) -> str:
    """The name of the mistake by which a rank has this content and not that one."""
    if actual == want:
        return ""
    if actual.chunk < 0:
        return "never written"
    if max(actual.parts) > 1:
        return "added twice" if 0 in actual.parts else "added instead of copied"
    apart = actual.chunk - want.chunk
    if table.collective not in REDUCING | {"scan"}:
        apart = apart or min(actual.ranks) - min(want.ranks)
    if apart:
        return "off by one chunk" if apart % table.chunks in (1, table.chunks - 1) else "another chunk"
    if actual.ranks - want.ranks:
        return "a rank too many"
    return "an old value" if rank in actual.ranks else "copied instead of added"
