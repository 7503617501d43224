"""Run compiled plans of a group over several hosts: the kernel, with what its rows of messages need."""

from __future__ import annotations

import ctypes
import weakref
from functools import partial

import numpy as np
import torch

from ....engine.carrier import Handle, Lost
from ....engine.compile.program import DONE, LOST, WAITING, Op, PeerWord, PlanWord, RowWord, StateWord
from ....engine.tensors import tensor_at
from ....hosts.span import Span
from ....ranks.group.group import Group

_LATE_NS = 200_000


class FarRun:
    """Takes the kernel's place in a group over hosts. For each call it is the `SpanningCall`."""

    details = ""
    compares = True

    def __init__(self, group: Group, span: Span) -> None:
        self._group, self._span, self._engine = weakref.ref(group), span, group.engine
        self._rank, self._world_ranks, self._state = group.rank, group.world_ranks, group.engine.state
        self._kernel = group.engine.run
        self.failure: BaseException | None = None
        self._looks = self._plan = 0
        self._late: list[Handle] = []
        """Receives of calls that have been refused, which the transport may still write."""
        carrier, here = span.carrier, set(span.here)
        self._here = np.array([rank in here for rank in range(group.size)], np.int64)
        self._peers = np.zeros((group.size, PeerWord.WORDS), np.int64)
        for rank, world_rank in enumerate(group.world_ranks):
            if rank not in here:
                out, endpoint = carrier.route(world_rank, 0, sends=True)
                into, _ = carrier.route(world_rank, 0, sends=False)
                self._peers[rank] = np.array([endpoint, out, into], np.uint64).astype(np.int64)
        words = self._engine.words
        words[StateWord.TRANSPORT], words[StateWord.PEERS] = carrier.transport, self._peers.ctypes.data
        words[StateWord.HERE] = self._here.ctypes.data
        words[StateWord.NEWS], words[StateWord.SEEN] = map(ctypes.addressof, (span.news, span.seen))
        self._engine.hosts = span.hosts
        carrier.tapes.add(self)  # the transport may read and write the group's staging memory

    def run(self, address: int, inp: int, out: int) -> int:
        """As the kernel's `run`, for this group."""
        span = self._span
        span.call, self._plan = self, address
        if self._looks:
            self._looks -= 1
            return WAITING | self._rank << 8
        try:
            while late := self._still_late():
                if not span.carrier.wait(self._state, 1 << 62, 0, 0, 0, _LATE_NS):
                    return WAITING | late << 8
            run = partial(_run, self._kernel, inp, out, self._state)
            status = span.carrier.replay(run, address, self._world_ranks[self._rank])
        except Lost as lost:
            self.failure = lost
            return LOST | self._rank << 8
        if status == DONE:
            span.call = None
            return DONE
        rank = status >> 8 & 0xFFFF
        if status & 0xFF == LOST:
            self.failure = span.carrier.lost(self._world_ranks[rank], self._engine.words[StateWord.LOST])
        elif span.must_look():
            self._looks = 1
            return WAITING | self._rank << 8
        elif rank == self._rank:
            return self.run(address, inp, out)
        return status

    def _still_late(self) -> int:
        """A rank of the group whose message to a refused call still comes in; 0 if there is none."""
        if self._late:
            self._late = self._span.carrier.pending(self._late)
        return self._world_ranks.index(self._late[0].peer) if self._late else 0

    def drop(self, *, refused: bool) -> None:
        """See `SpanningCall`."""
        self._span.call = self.failure = None
        self._looks = 0
        words = (ctypes.c_int64 * PlanWord.WORDS).from_address(self._plan)
        rows, at = words[PlanWord.NROWS], words[PlanWord.REQUESTS]
        table = (ctypes.c_int64 * (8 * rows)).from_address(words[PlanWord.ROWS])
        requests = (ctypes.c_int64 * (2 * rows)).from_address(at)
        nothing, carrier, handles = tensor_at(0, 0, torch.uint8), self._span.carrier, list[Handle]()
        for k, request in enumerate(requests):
            row = table[8 * (k % rows) : 8 * (k % rows) + 8]
            if request:
                requests[k] = 0
                peer, sends = self._world_ranks[row[RowWord.PEER]], row[RowWord.OP] == Op.SEND
                handles.append(carrier.adopt(request, peer, nothing, sends=sends))
        self._engine.words[StateWord.SENDING] = 0
        carrier.give_up(handles)
        self._late += [handle for handle in handles if not handle.sends]
        del refused


def _run(kernel, inp, out, state, plan):  # type: ignore[no-untyped-def]
    return kernel(plan, inp, out, state)
