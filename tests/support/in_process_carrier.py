"""A carrier for tests: all ranks in one process, and the test says which message is moved next, and how much of it."""

import ctypes as c
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from unisono.engine.carrier import Handle, Lost
from unisono.engine.compile.program import TransportWord

_UNDER_WAY, _FAILED, _FIRST_ERROR, _TAG_BITS = 1, -7, -200, 42
_TAGS = (1 << _TAG_BITS) - 1
Key = tuple[int, int, int]
"""Source, destination, tag."""


@dataclass(eq=False)
class _Transfer:
    """A send or a receive. moved: bytes so far."""

    wires: "Wires"
    peer: int
    data: torch.Tensor
    sends: bool
    moved: int = 0
    over: bool = False

    def settle(self) -> None:
        """What has arrived needs no other rank any more."""
        if not self.over and self.wires.aborted:
            raise Lost(self.peer, "aborted")
        self.wires.finish(self)


class Wires:
    """What is on its way between all ranks. A pair is a send and the receive that it has met.

    spy: is called with the source, the destination and the tag of each send, and its bytes, which it may change.
    """

    def __init__(self, random: Random) -> None:
        self.random, self.aborted = random, False
        self._waiting: list[tuple[Key, _Transfer]] = []
        self._pairs: list[tuple[_Transfer, _Transfer]] = []
        self.spy: Callable[[Key, torch.Tensor], object] = lambda *_: None

    @property
    def unmet(self) -> int:
        """How many sends and receives have not met."""
        return len(self._waiting)

    def put(self, key: Key, transfer: _Transfer) -> None:
        if transfer.sends:
            self.spy(key, transfer.data)
        met = next((one for one in self._waiting if one[0] == key and one[1].sends != transfer.sends), None)
        if met is None:
            self._waiting.append((key, transfer))
            return
        self._waiting.remove(met)
        into, out = sorted((transfer, met[1]), key=lambda one: one.sends)
        assert out.data.numel() == into.data.numel(), "a message of another size"
        self._pairs.append((out, into))

    def take_back(self, receive: _Transfer) -> None:
        """Let no message meet this receive any more, unless one has."""
        self._waiting = [one for one in self._waiting if one[1] is not receive or receive.sends]

    def move(self) -> bool:
        """Move a few bytes of any message; False if there is none that could go on."""
        if not self._pairs:
            return False
        size = max(1, *(pair[0].data.numel() for pair in self._pairs))
        self._move(self.random.choice(self._pairs), self.random.choice([size, 8, self.random.randrange(size) + 1]))
        return True

    def finish(self, transfer: _Transfer) -> None:
        """Move the rest of a message."""
        if not transfer.over:
            pairs = [pair for pair in self._pairs if transfer in pair]
            assert pairs, "settled before it was sent"
            self._move(pairs[0], transfer.data.numel())

    def _move(self, pair: tuple[_Transfer, _Transfer], n: int) -> None:
        out, into = pair
        into.data[out.moved : out.moved + n].copy_(out.data[out.moved : out.moved + n])
        out.moved += n
        if out.moved >= out.data.numel():
            out.over = into.over = True
            self._pairs.remove(pair)


class InProcessCarrier:
    """One rank's end, with an engine of functions of this process, which compiled code calls.

    Some sends of compiled code are over at once, by the random numbers of a test; others when they have moved.

    requests: the messages that compiled code has begun, by the engine's number.
    fails: the next message that compiled code begins fails: "begin", at once; "later", when it is asked for.
    """

    tags, owes = 1 << _TAG_BITS, False

    def __init__(self, wires: Wires, rank: int) -> None:
        self._wires, self._rank, self._numbers = wires, rank, itertools.count(1)
        self.requests: dict[int, _Transfer | None] = {}
        self.fails, self.users = "", set[Any]()
        word = c.c_int64
        self._functions = {
            TransportWord.SEND: c.CFUNCTYPE(word, *[word] * 5)(self._send),
            TransportWord.RECEIVE: c.CFUNCTYPE(word, *[word] * 6)(self._receive),
            TransportWord.STATUS: c.CFUNCTYPE(c.c_int32, word)(self._status),
            TransportWord.FREE: c.CFUNCTYPE(c.c_int32, word)(self._free),
            TransportWord.ARM: c.CFUNCTYPE(c.c_int32, word)(lambda _: -1),
            TransportWord.PROGRESS: c.CFUNCTYPE(c.c_int32, word)(self._progress),
        }
        self._words = (word * TransportWord.WORDS)()
        for place, function in self._functions.items():
            self._words[place] = c.cast(function, c.c_void_p).value or 0
        self._words[TransportWord.UNDER_WAY], self._words[TransportWord.FIRST_ERROR] = _UNDER_WAY, _FIRST_ERROR
        self.transport = c.addressof(self._words)

    def isend(self, peer: int, tag: int, data: torch.Tensor) -> _Transfer:
        return self._begin((self._rank, peer, tag), _Transfer(self._wires, peer, data, sends=True))

    def irecv(self, peer: int, tag: int, data: torch.Tensor) -> _Transfer:
        return self._begin((peer, self._rank, tag), _Transfer(self._wires, peer, data, sends=False))

    def _begin(self, key: Key, transfer: _Transfer) -> _Transfer:
        assert (transfer.data.dtype, transfer.data.dim(), transfer.data.is_contiguous()) == (torch.uint8, 1, True)
        assert 0 <= key[2] < self.tags
        if self._wires.aborted:
            raise Lost(transfer.peer, "aborted")
        self._wires.put(key, transfer)
        return transfer

    def keep_moving(self, messages: Iterable[Handle]) -> None:
        """The test moves them."""

    def progress(self) -> None:
        """The test moves messages."""

    def route(self, peer: int, tag: int, *, sends: bool) -> tuple[int, int]:
        return (self._rank if sends else peer) << _TAG_BITS | tag, peer

    def run(self, kernel: Callable[..., int], arguments: tuple[int, ...], peer: int) -> int:
        if self._wires.aborted:
            raise Lost(peer, "aborted")
        return kernel(*arguments)

    def adopt(self, request: int, _peer: int, _data: torch.Tensor, *, sends: bool) -> Handle:
        found = self.requests.pop(request)
        assert found is not None
        assert sends == found.sends
        return found

    def lost(self, peer: int, status: int) -> Lost:
        return Lost(peer, f"status {status}")

    def give_up(self, messages: Iterable[Handle]) -> None:
        for message in messages:
            if isinstance(message, _Transfer):
                self._wires.take_back(message)

    def _send(self, endpoint: int, place: int, nbytes: int, tag: int, _: int) -> int:
        at_once = self._wires.random.random() < 0.5
        data = _memory(place, nbytes)
        transfer = self.isend(endpoint, tag & _TAGS, data.clone() if at_once else data)
        return 0 if at_once and not self.fails else self._request(transfer)

    def _receive(self, _worker: int, place: int, nbytes: int, tag: int, _bits: int, _how: int) -> int:
        return self._request(self.irecv(tag >> _TAG_BITS, tag & _TAGS, _memory(place, nbytes)))

    def _request(self, transfer: _Transfer) -> int:
        fails, self.fails = self.fails, ""
        if fails == "begin":
            return _FAILED
        number = next(self._numbers)
        self.requests[number] = None if fails else transfer
        return number

    def _status(self, request: int) -> int:
        transfer = self.requests[request]
        if transfer is None:
            return _FAILED
        return 0 if transfer.over else _UNDER_WAY

    def _free(self, request: int) -> int:
        del self.requests[request]
        return 0

    def _progress(self, _: int) -> int:
        return int(self._wires.random.random() < 0.3 and self._wires.move())


def _memory(place: int, nbytes: int) -> torch.Tensor:
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((c.c_uint8 * nbytes).from_address(place), dtype=torch.uint8)
