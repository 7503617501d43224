"""From a program's places to memory: the bytes of messages, their addresses, and the copies and combinations."""

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, groupby, pairwise
from typing import NamedTuple

import torch

from ...schedule import T, X
from .message_program import FINAL, GIVEN, ChunkPlace, Piece, TableMessage, Writing
from .persistent_receives import ReceiveBuffer

_LINE = 64
_CLASSES = 8
"""How many sizes of buffers lie between two powers of two: few, so calls of ever new sizes use idle buffers again."""

LARGE_BYTES = 256 << 10
"""Messages from this size on travel without a copy where they can."""

_WORD = 8

_UNLIKELY = int.from_bytes(os.urandom(8), "little") >> 1
"""A random word. Data end with it with a probability of 2^-63, even if an attacker chooses them."""

_MISSING = torch.tensor([0, _UNLIKELY], dtype=torch.int64, device="cpu")
"""The values of words before their message is there."""


class Buffers:
    """Buffers by size. idle_bytes: the most bytes to keep for later; more is given back to the system."""

    def __init__(self, idle_bytes: int = 256 << 20) -> None:
        self._idle: dict[int, list[torch.Tensor]] = {}
        self._room = idle_bytes

    def take(self, nbytes: int) -> torch.Tensor:
        """A buffer of at least `nbytes` bytes, at the start of a cache line; its content is arbitrary."""
        step = max(_LINE, (1 << nbytes.bit_length() - 1) // _CLASSES if nbytes else 0)
        size = -(-nbytes // step) * step
        same = self._idle.get(size)
        try:
            buffer = same.pop() if same else None
        except IndexError:  # another thread took the last one
            buffer = None
        if buffer is None:
            return torch.empty(size, dtype=torch.uint8, device="cpu")
        self._room += size
        return buffer

    def give(self, buffers: list[torch.Tensor]) -> None:
        """Take back buffers that neither the caller nor the carrier uses any more."""
        for buffer in buffers:
            if (size := buffer.numel()) <= self._room:
                self._room -= size
                self._idle.setdefault(size, []).append(buffer)


class Action(NamedTuple):
    """Copy `first` to `out`; or combine `first` and `second` into it."""

    out: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor | None = None


class _Span(NamedTuple):
    """Some bytes of a storage.

    tensor: a tensor of the storage, with the right dtype.
    storage, start, stop: the addresses of the storage and of both ends.
    """

    tensor: torch.Tensor
    storage: int
    start: int
    stop: int

    def whole(self) -> torch.Tensor:
        """The flat tensor of these bytes."""
        item = self.tensor.element_size()
        return self.tensor.as_strided(((self.stop - self.start) // item,), (1,), (self.start - self.storage) // item)


_Step = tuple[_Span, ...]
"""An action on spans: out, first, and for combinations second."""


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
    receive_buffer: where it arrives, if this is always the same memory.
    """

    payloads: list[torch.Tensor]
    missing: int
    watched: tuple[int, int]
    pieces: list[_Span]
    straight: bool
    packing: list[Action]
    marked: bool
    short: bool = False
    receive_buffer: ReceiveBuffer | None = None


NO_WIRE = Wire([], 0, (0, 0), [], False, [], False)


class Memory:
    """Where the places of a program are. Without chunks, all places are empty.

    chunks, y: the places of buffers X and Y.
    t: the elements of each chunk of buffer T; by default as in X.
    given: the places of the input, if others.
    final: the places of the results, if others. Values arrive there only by a copy.
    taken: the buffers that are in use.
    """

    def __init__(
        self,
        buffers: Buffers,
        chunks: Sequence[torch.Tensor],
        y: Sequence[torch.Tensor],
        t: Sequence[int],
        given: Sequence[torch.Tensor] | None,
        final: Sequence[torch.Tensor] | None,
    ) -> None:
        self._buffers = buffers
        self._kept = [chunks, y]
        self._t = t or [chunk.numel() for chunk in chunks]
        self._given = chunks if given is None else given
        self._final = final
        self._dtype = chunks[0].dtype if len(chunks) else torch.uint8
        self._spans: dict[ChunkPlace, _Span] = {}
        self.taken: list[torch.Tensor] = []

    def wire(
        self, message: TableMessage, *, leaves: bool, receive_buffer: Callable[[int], ReceiveBuffer] | None = None
    ) -> Wire:
        """A message in memory.

        A short message is packed, with a word behind it. A long message is sent as it is. If it may arrive straight in
        its places, nothing may be written there before, so a message with only a word follows it. A word follows, too,
        if its last part is shorter than a word.

        leaves: it is sent, not received.
        receive_buffer: bytes -> where a short message of this size arrives.
        """
        spans = [self._at(place) for place in message.places]
        ends = list(accumulate((span.stop - span.start for span in spans), initial=0))
        if ends[-1] < LARGE_BYTES:
            size = -(-ends[-1] // _WORD) * _WORD + _WORD
            lands = None if leaves or receive_buffer is None else receive_buffer(size)
            whole = lands.whole if lands else self._take(size)
            wire = self._packed([whole[:size]], whole, spans, ends, leaves, marked=True)
            return wire._replace(short=True, receive_buffer=lands)
        parts = [(ends[a], ends[b]) for a, b in pairwise(message.runs) if ends[a] < ends[b]]
        marked = message.copied or parts[-1][1] - parts[-1][0] < _WORD  # then the last part has no word of its own
        word = [self._take(_WORD)[:_WORD]] if marked else []
        if message.direct and (leaves or not self._final or all(place.where != FINAL for place in message.places)):
            runs = [_joined([(span,) for span in spans[a:b]]) for a, b in pairwise(message.runs)]
            if all(len(run) <= 1 for run in runs):
                straight = [run[0][0].whole().view(torch.uint8) for run in runs if run]
                payloads = [*straight, *word]
                return _wire(payloads, 0, spans, True, [], marked)
        whole = self._take(ends[-1])
        cuts = [whole[start:stop] for start, stop in parts]
        return self._packed([*cuts, *word], whole, spans, ends, leaves, marked=marked)

    def actions(self, writings: Sequence[Writing], wires: Mapping[int, Wire]) -> list[Action]:
        """The actions of consecutive writes of one round. wires: number of a message -> the message in memory."""
        writes = [self._steps(writing, wires) for writing in writings]
        actions: list[Action] = []
        for _, some in groupby(writes, key=len):  # neighbours with the same number of steps may become one
            alike = [*some]
            turns = [*chain.from_iterable(alike)] if _any_reads_another(alike) else chain(*zip(*alike, strict=True))
            actions += _actions([*turns])
        return actions

    def _steps(self, writing: Writing, wires: Mapping[int, Wire]) -> list[_Step]:
        """The combination of all sources of a write, in their order, whatever memory it overwrites."""
        out = self._at(writing.place)
        sources = [
            wires[source.message].pieces[source.part] if isinstance(source, Piece) else self._at(source)
            for source in writing.sources
        ]
        if len(sources) == 1:
            return [] if sources[0] is out else [(out, sources[0])]
        # A source may lie where the sum goes, as the input of a call in place. It must not be overwritten before its
        # turn: until then the sum is in the first message, or, if there is none, in memory of its own.
        own = max((n for n, source in enumerate(sources) if _meet(source, out)), default=0)
        value = early = sources[0]
        if own > 1 and not isinstance(writing.sources[0], Piece):
            early = _span(self._room(out.stop - out.start))
        steps: list[_Step] = []
        for n, source in enumerate(sources[1:], 1):
            into = out if n >= own else early
            steps.append((into, value, source))
            value = into
        return steps

    def _packed(
        self,
        payloads: list[torch.Tensor],
        whole: torch.Tensor,
        spans: Sequence[_Span],
        ends: Sequence[int],
        leaves: bool,
        marked: bool,
    ) -> Wire:
        """A message with its pieces in a buffer, one behind the other."""
        start = whole.data_ptr()
        typed = whole.view(self._dtype)
        pieces = [_Span(typed, start, start + a, start + b) for a, b in pairwise(ends)]
        packing = _actions(list(zip(pieces, spans, strict=True))) if leaves else []
        missing = 0 if marked else _UNLIKELY
        return _wire(payloads, missing, pieces, False, packing, marked)

    def _at(self, place: ChunkPlace) -> _Span:
        """The memory of a place."""
        span = self._spans.get(place)
        if span is None:
            span = self._spans[place] = _span(self._tensor(place))
        return span

    def _room(self, nbytes: int) -> torch.Tensor:
        return self._take(nbytes)[:nbytes].view(self._dtype)

    def _tensor(self, place: ChunkPlace) -> torch.Tensor:
        buffer, chunk, where = place
        if not len(self._kept[X]):
            return torch.empty(0, dtype=self._dtype, device="cpu")
        if buffer == T:
            return self._room(self._t[chunk] * self._dtype.itemsize)
        if where == GIVEN:
            return self._given[chunk]
        return self._final[chunk] if where == FINAL and self._final is not None else self._kept[buffer][chunk]

    def _take(self, nbytes: int) -> torch.Tensor:
        buffer = self._buffers.take(nbytes)
        self.taken.append(buffer)
        return buffer


def _span(tensor: torch.Tensor) -> _Span:
    start = tensor.data_ptr()
    return _Span(tensor, tensor.untyped_storage().data_ptr(), start, start + tensor.nbytes)


def _meet(one: _Span, two: _Span) -> bool:
    """Do they share memory?"""
    return max(one.start, two.start) < min(one.stop, two.stop)


def _any_reads_another(writes: Sequence[Sequence[_Step]]) -> bool:
    """May one of several writes read in a later step what another has written in an earlier step?"""
    outs = [steps[-1][0] for steps in writes if steps]
    return any(
        _meet(source, out) for steps in writes for step in steps[1:] for source in step[1:] for out in outs
        if out is not steps[-1][0]
    )  # fmt: skip


def _wire(
    payloads: list[torch.Tensor], missing: int, pieces: list[_Span], straight: bool, packing: list[Action], marked: bool
) -> Wire:
    last = payloads[-1]
    watched = last.data_ptr() + last.nbytes - _WORD, _MISSING.data_ptr() + _WORD * (missing != 0)
    return Wire(payloads, missing, watched, pieces, straight, packing, marked)


def _actions(steps: Sequence[_Step]) -> list[Action]:
    return [Action(*(span.whole() for span in step)) for step in _joined(steps)]


def _joined(steps: Sequence[_Step]) -> list[_Step]:
    """The same with fewer steps: one step for spans that are neighbours in memory, none for empty spans."""
    joined: list[_Step] = []
    for step in steps:
        if step[0].start == step[0].stop:
            continue
        longer = _joint(joined[-1], step) if joined else None
        if longer:
            joined[-1] = longer
        else:
            joined.append(step)
    return joined


def _joint(one: _Step, two: _Step) -> _Step | None:
    """Two steps as one, if the second's spans lie behind the first's, and no span is written too soon."""
    if len(one) != len(two):
        return None
    for a, b in zip(one, two, strict=True):
        if a.stop != b.start or a.storage != b.storage:
            return None
    start, stop = one[0].start, two[0].stop
    for a, b in zip(one[1:], two[1:], strict=True):
        if start < a.start < stop or start < b.stop < stop:
            return None
    return tuple(a._replace(stop=b.stop) for a, b in zip(one, two, strict=True))
