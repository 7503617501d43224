"""A carrier for tests whose engine compiled code calls: functions of this process, with messages of `Wires`."""

import ctypes as c
import itertools
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import torch

from tests.support.in_process_carrier import InProcessCarrier, Wires, _Transfer
from unisono.engine.carrier import Handle, Lost
from unisono.engine.tape import EngineWord

_UNDER_WAY, _FAILED, _FIRST_ERROR, _TAG_BITS = 1, -7, -200, 30
_TAGS = (1 << _TAG_BITS) - 1

Combine = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


class EngineInProcess(InProcessCarrier):
    """One rank's end. Some sends are over at once, by the random numbers of a test; others when they have moved.

    requests: the messages that compiled code has begun, by the engine's number.
    fails: the next message that is begun fails: "begin", at once; "later", when it is asked for.
    """

    own_thread = False

    def __init__(self, wires: Wires, rank: int, random: Random) -> None:
        super().__init__(wires, rank)
        self._random, self._numbers = random, itertools.count(1)
        self.requests: dict[int, _Transfer | None] = {}
        self.fails, self.tapes = "", set[Any]()
        word = c.c_int64
        self._functions = {
            EngineWord.SEND: c.CFUNCTYPE(word, *[word] * 5)(self._send),
            EngineWord.RECEIVE: c.CFUNCTYPE(word, *[word] * 6)(self._receive),
            EngineWord.STATUS: c.CFUNCTYPE(c.c_int32, word)(self._status),
            EngineWord.FREE: c.CFUNCTYPE(c.c_int32, word)(self._free),
            EngineWord.PROGRESS: c.CFUNCTYPE(c.c_int32, word)(self._progress),
        }
        self._words = (word * len(EngineWord))()
        for place, function in self._functions.items():
            self._words[place] = c.cast(function, c.c_void_p).value or 0
        self._words[EngineWord.UNDER_WAY], self._words[EngineWord.FIRST_ERROR] = _UNDER_WAY, _FIRST_ERROR
        self.engine = c.addressof(self._words)

    @property
    def compiled(self) -> "EngineInProcess":  # type: ignore[override]
        """See `CompiledCarrier`."""
        return self

    def route(self, peer: int, tag: int, *, sends: bool) -> tuple[int, int]:
        """See `CompiledCarrier`."""
        return (self._rank if sends else peer) << _TAG_BITS | tag, peer

    def replay(self, run: Callable[[int], int], tape: int, peer: int) -> int:
        """See `CompiledCarrier`."""
        if self._wires.aborted:
            raise Lost(peer, "aborted")
        return run(tape)

    def adopt(self, request: int, _peer: int, _data: torch.Tensor, *, sends: bool) -> Handle:
        """See `CompiledCarrier`."""
        found = self.requests.pop(request)
        assert sends == found.sent
        return found

    def lost(self, peer: int, status: int) -> Lost:
        """See `CompiledCarrier`."""
        return Lost(peer, f"status {status}")

    def give_up(self, messages: Iterable[Handle]) -> None:
        """See `Carrier`. Receives are taken back."""
        messages = list(messages)
        super().give_up(messages)
        for message in messages:
            if isinstance(message, _Transfer):
                self._wires.take_back(message)

    def _send(self, endpoint: int, place: int, nbytes: int, tag: int, _: int) -> int:
        at_once = self._random.random() < 0.5
        data = _memory(place, nbytes)
        transfer = self.isend(endpoint, tag & _TAGS, data.clone() if at_once else data)
        return 0 if at_once and not self.fails else self._request(transfer)

    def _receive(self, _engine: int, place: int, nbytes: int, tag: int, _bits: int, _how: int) -> int:
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
        return int(self._random.random() < 0.3 and self._wires.move())


def _memory(place: int, nbytes: int) -> torch.Tensor:
    return torch.frombuffer((c.c_uint8 * nbytes).from_address(place), dtype=torch.uint8)


def combine_kernel(combine: Combine, dtype: torch.dtype = torch.int64) -> tuple[Any, int]:
    """A combine kernel, which calls a function of tensors, and its address."""

    def run(outs: int, nout: int, ins: int, nin: int, count: int, _ranks: int) -> None:
        assert (nout, nin) == (1, 2)
        (out,), (first, second) = (c.c_int64 * 1).from_address(outs), (c.c_int64 * 2).from_address(ins)
        combine(*(_memory(place, dtype.itemsize * count).view(dtype) for place in (out, first, second)))

    function = c.CFUNCTYPE(None, *[c.c_int64] * 6)(run)
    return function, c.cast(function, c.c_void_p).value or 0
