"""From a program's places to memory: the bytes of messages, their addresses, and the copies and combinations."""

import os
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, groupby, pairwise
from typing import NamedTuple

import torch

from ...engine.tensors import tensor_at
from .message_program import FINAL, KEPT, ChunkPlace, Piece, TableMessage, Writing

_LINE = 64
_LEAST_BYTES = 1 << 14

LARGE_BYTES = 256 << 10
"""Messages from this size on travel without a copy where they can."""

_WORD = 8

_UNLIKELY = int.from_bytes(os.urandom(8), "little") >> 1
"""A random word. Data end with it with a probability of 2^-63, even if an attacker chooses them."""

_MISSING = torch.tensor([0, _UNLIKELY], dtype=torch.int64, device="cpu")
"""The values of words before their message is there."""


class Bytes(NamedTuple):
    """Some bytes of memory: the addresses of both ends."""

    start: int = 0
    stop: int = 0

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


class Room:
    """Memory for calls that take turns. Each call takes its spans from the start on. They never move.

    blocks: the memory. Each block is at least as large as all earlier ones together.
    nbytes: of all blocks.
    """

    def __init__(self) -> None:
        self.blocks: list[torch.Tensor] = []
        self.nbytes = 0
        self.begin()

    def begin(self) -> None:
        """All memory is free again: another call takes it."""
        self._block = self._at = 0

    def take(self, nbytes: int) -> Bytes:
        """A span at the start of a cache line; its content is arbitrary."""
        size = -(-nbytes // _LINE) * _LINE
        while self._block < len(self.blocks) and self._at + size > self.blocks[self._block].nbytes:
            self._block, self._at = self._block + 1, 0
        if self._block == len(self.blocks):
            self.blocks.append(torch.empty(max(size, self.nbytes, _LEAST_BYTES), dtype=torch.uint8, device="cpu"))
            self.nbytes += self.blocks[-1].nbytes
        start = self.blocks[self._block].data_ptr() + self._at
        self._at += size
        return Bytes(start, start + nbytes)


Action = tuple[Bytes, ...]
"""Copy the second span to the first; or combine the second and the third into the first."""


class Wire(NamedTuple):
    """One message of a program in memory.

    payloads: the tensors that are sent or received, in order.
    missing: its last word differs from this value once the message is there.
    watched: the addresses of the word and of the value.
    pieces: where the bytes of each of its places are.
    straight: the pieces are the places themselves.
    packing: the copies that are made before it is sent, if it is not straight.
    marked: the word is no part of the data; the sender sets it.
    short: it is one payload, with its word.
    """

    payloads: list[torch.Tensor]
    missing: int
    watched: tuple[int, int]
    pieces: list[Bytes]
    straight: bool
    packing: list[Action]
    marked: bool
    short: bool = False


NO_WIRE = Wire([], 0, (0, 0), [], False, [], False)


class Memory:
    """Where the places of a program are, and the memory of its messages.

    places: places that are not here are empty. Values arrive in a FINAL place only by a copy, unless it is also KEPT.
    room: has the memory of messages. Their tensors keep it.
    """

    def __init__(self, places: Mapping[ChunkPlace, Bytes], room: Room) -> None:
        self._places, self._room = places, room

    def wire(self, message: TableMessage, *, leaves: bool) -> Wire:
        """A message in memory.

        A short message is packed, with a word behind it. A long message is sent as it is. If it may arrive straight in
        its places, nothing may be written there before, so a message with only a word follows it. A word follows, too,
        if its last part is shorter than a word.

        leaves: it is sent, not received.
        """
        spans = [self._at(place) for place in message.places]
        ends = list(accumulate((span.nbytes for span in spans), initial=0))
        if ends[-1] < LARGE_BYTES:
            whole = self._room.take(-(-ends[-1] // _WORD) * _WORD + _WORD)
            return _packed([self._tensor(whole)], whole, spans, ends, leaves, marked=True)._replace(short=True)
        parts = [(ends[a], ends[b]) for a, b in pairwise(message.runs) if ends[a] < ends[b]]
        marked = message.copied or parts[-1][1] - parts[-1][0] < _WORD  # then the last part has no word of its own
        word = [self._tensor(self._room.take(_WORD))] if marked else []
        if message.direct and (leaves or not any(map(self._is_apart, message.places))):
            runs = [joined([(span,) for span in spans[a:b]]) for a, b in pairwise(message.runs)]
            if all(len(run) <= 1 for run in runs):
                straight = [self._tensor(run[0][0]) for run in runs if run]
                return _wire([*straight, *word], 0, spans, True, [], marked)
        whole = self._room.take(ends[-1])
        cuts = [self._tensor(Bytes(whole.start + a, whole.start + b)) for a, b in parts]
        return _packed([*cuts, *word], whole, spans, ends, leaves, marked=marked)

    def actions(self, writings: Sequence[Writing], wires: Mapping[int, Wire]) -> list[Action]:
        """The actions of consecutive writes of one round. wires: number of a message -> the message in memory."""
        writes = [self._steps(writing, wires) for writing in writings]
        actions: list[Action] = []
        for _, some in groupby(writes, key=len):  # neighbours with the same number of steps may become one
            alike = [*some]
            turns = [*chain.from_iterable(alike)] if _any_reads_another(alike) else chain(*zip(*alike, strict=True))
            actions += joined([*turns])
        return actions

    def _steps(self, writing: Writing, wires: Mapping[int, Wire]) -> list[Action]:
        """The combination of all sources of a write, in their order, whatever memory it overwrites."""
        out = self._at(writing.place)
        sources = [
            wires[source.message].pieces[source.part] if isinstance(source, Piece) else self._at(source)
            for source in writing.sources
        ]
        if len(sources) == 1:
            return [] if sources[0] == out else [(out, sources[0])]
        # A source may lie where the sum goes, as the input of a call in place. It must not be overwritten before its
        # turn: until then the sum is in the first message, or, if there is none, in memory of its own.
        own = max((n for n, source in enumerate(sources) if _meet(source, out)), default=0)
        value = early = sources[0]
        if own > 1 and not isinstance(writing.sources[0], Piece):
            early = self._room.take(out.nbytes)
        steps: list[Action] = []
        for n, source in enumerate(sources[1:], 1):
            into = out if n >= own else early
            steps.append((into, value, source))
            value = into
        return steps

    def _at(self, place: ChunkPlace) -> Bytes:
        return self._places.get(place, Bytes())

    def _is_apart(self, place: ChunkPlace) -> bool:
        """Is this a place for a result that is the place of nothing else?"""
        return place.where == FINAL and self._at(place) != self._at(place._replace(where=KEPT))

    def _tensor(self, span: Bytes) -> torch.Tensor:
        return tensor_at(span.start, span.nbytes, torch.uint8, owner=self._room)


def _packed(
    payloads: list[torch.Tensor], whole: Bytes, spans: Sequence[Bytes], ends: Sequence[int], leaves: bool, marked: bool
) -> Wire:
    """A message with its pieces in a buffer, one behind the other."""
    pieces = [Bytes(whole.start + a, whole.start + b) for a, b in pairwise(ends)]
    packing = joined([*zip(pieces, spans, strict=True)]) if leaves else []
    return _wire(payloads, 0 if marked else _UNLIKELY, pieces, False, packing, marked)


def _wire(
    payloads: list[torch.Tensor], missing: int, pieces: list[Bytes], straight: bool, packing: list[Action], marked: bool
) -> Wire:
    last = payloads[-1]
    watched = last.data_ptr() + last.nbytes - _WORD, _MISSING.data_ptr() + _WORD * (missing != 0)
    return Wire(payloads, missing, watched, pieces, straight, packing, marked)


def _meet(one: Bytes, two: Bytes) -> bool:
    """Do they share memory?"""
    return max(one.start, two.start) < min(one.stop, two.stop)


def _any_reads_another(writes: Sequence[Sequence[Action]]) -> bool:
    """May one of several writes read in a later step what another has written in an earlier step?"""
    outs = [steps[-1][0] for steps in writes if steps]
    return any(
        _meet(source, out) for steps in writes for step in steps[1:] for source in step[1:] for out in outs
        if out is not steps[-1][0]
    )  # fmt: skip


def joined(steps: Sequence[Action]) -> list[Action]:
    """The same with fewer actions: one for spans that are neighbours in memory, none for empty spans."""
    fewer: list[Action] = []
    for step in steps:
        if step[0].start == step[0].stop:
            continue
        longer = _joint(fewer[-1], step) if fewer else None
        if longer:
            fewer[-1] = longer
        else:
            fewer.append(step)
    return fewer


def _joint(one: Action, two: Action) -> Action | None:
    """Two actions as one, if the second's spans lie behind the first's, and no span is written too soon."""
    if len(one) != len(two) or any(a.stop != b.start for a, b in zip(one, two, strict=True)):
        return None
    start, stop = one[0].start, two[0].stop
    for a, b in zip(one[1:], two[1:], strict=True):
        if start < a.start < stop or start < b.stop < stop:
            return None
    return tuple(Bytes(a.start, b.stop) for a, b in zip(one, two, strict=True))
