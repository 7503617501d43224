"""A carrier for tests: all ranks in one process, and the test says which message is moved next, and how much of it."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

import torch

from tests.support.waiting import until
from unisono.engine.carrier import Handle, Lost


@dataclass(eq=False)
class _Transfer:
    """A send or a receive. moved: bytes so far."""

    wires: "Wires"
    peer: int
    data: torch.Tensor
    sent: bool
    moved: int = 0
    over: bool = False

    def settle(self) -> None:
        """See `Handle`. What has arrived needs no other rank any more; a helping thread may wait for it."""
        if threading.current_thread() is not threading.main_thread():
            until(lambda: self.over or self.wires.aborted)
        if not self.over and self.wires.aborted:
            raise Lost(self.peer, "aborted")
        self.wires.finish(self)


class Wires:
    """What is on its way between all ranks. A pair is a send and the receive that it has met."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._sent: dict[tuple[int, int, int], list[_Transfer]] = {}
        self._posted: dict[tuple[int, int, int], list[_Transfer]] = {}
        self._pairs: list[tuple[_Transfer, _Transfer]] = []
        self.aborted = False
        self.unmet = 0

    def put(self, key: tuple[int, int, int], transfer: _Transfer, sent: bool) -> None:
        """A send or a receive begins. key: source, destination, tag."""
        mine, others = (self._sent, self._posted) if sent else (self._posted, self._sent)
        if others.get(key):
            other = others[key].pop(0)
            self.unmet -= 1
            pair = (transfer, other) if sent else (other, transfer)
            assert pair[0].data.numel() == pair[1].data.numel(), "a message of another size"
            self._pairs.append(pair)
        else:
            mine.setdefault(key, []).append(transfer)
            self.unmet += 1

    def take_back(self, receive: _Transfer) -> None:
        """Let no message meet this receive any more, unless one has."""
        for posted in self._posted.values():
            if receive in posted:
                posted.remove(receive)
                self.unmet -= 1

    @property
    def untaken(self) -> int:
        """How many messages have been sent that nobody has posted a receive for."""
        return sum(map(len, self._sent.values()))

    def move(self) -> bool:
        """Move a few bytes of any message; False if there is none that could go on."""
        if not self._pairs:
            return False
        size = max(pair[0].data.numel() for pair in self._pairs)
        self._move(self._random.choice(self._pairs), self._random.choice([size, 8, self._random.randrange(size) + 1]))
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
    """One rank's end."""

    name = "in process"
    tags = 1 << 30
    own_thread = True
    wait = compiled = None

    def __init__(self, wires: Wires, rank: int) -> None:
        self._wires, self._rank = wires, rank
        self.given_up: list[Handle] = []

    def isend(self, peer: int, tag: int, data: torch.Tensor) -> _Transfer:
        """See `Carrier`."""
        return self._begin((self._rank, peer, tag), peer, data, sent=True)

    def irecv(self, peer: int, tag: int, data: torch.Tensor) -> _Transfer:
        """See `Carrier`."""
        return self._begin((peer, self._rank, tag), peer, data, sent=False)

    def _begin(self, key: tuple[int, int, int], peer: int, data: torch.Tensor, *, sent: bool) -> _Transfer:
        assert data.dtype is torch.uint8
        assert data.dim() == 1
        assert data.is_contiguous()
        assert 0 <= key[2] < self.tags
        if self._wires.aborted:
            raise Lost(peer, "aborted")
        transfer = _Transfer(self._wires, peer, data, sent)
        self._wires.put(key, transfer, sent)
        return transfer

    def pending(self, messages: Iterable[Handle]) -> list[Handle]:
        """See `Carrier`."""
        return [*messages]

    def progress(self) -> None:
        """See `Carrier`."""

    def give_up(self, messages: Iterable[Handle]) -> None:
        """See `Carrier`."""
        self.given_up += messages

    def abort(self) -> None:
        """See `Carrier`."""
        self._wires.aborted = True

    def close(self) -> None:
        """See `Carrier`."""
