"""Run plans over several hosts: the kernel, with what its rows of messages need, and what is left after a failed call.

Messages may still travel to and from a lost host, so that no wait is long enough for a look. Therefore the kernel also
looks at the end of a call whether there is urgent news, such as a rank that has gone (`Span.must_look`). If so, the
outcome names this rank itself.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

import numpy as np
import torch

from ....engine.carrier import Handle, Lost
from ....engine.compile.program import DONE, LOST, ROW_WORDS, WAITING, Op, PeerWord, PlanWord, RowWord, StateWord
from ....hosts.span import Span
from ....ranks.group.group import Group

_LATE_NS = 1_000_000
_NEVER = 1 << 62
_SENDING, _LOST = int(StateWord.SENDING), int(StateWord.LOST)


class Relay:
    """Takes the kernel's place in a group over hosts, and is its `SpanningCall` while a call is made.

    failure: what has ended the call, or None.
    """

    def __init__(self, group: Group, span: Span) -> None:
        self._span, self._engine, self._kernel = span, group.engine, group.engine.run
        self._rank, self._world_ranks, self._state = group.rank, group.world_ranks, group.engine.state
        self.failure: BaseException | None = None
        self._plan = self._looks = 0
        """The address of the plan of the last call; how often `attend` shall still look at the peers."""
        here = set(span.here)
        self._here = np.array([rank in here for rank in range(group.size)], np.int64)
        self._peers = np.zeros((group.size, PeerWord.WORDS), np.uint64)
        for rank, world_rank in enumerate(group.world_ranks):
            if rank not in here:
                out, endpoint = span.carrier.route(world_rank, 0, sends=True)
                into, _ = span.carrier.route(world_rank, 0, sends=False)
                self._peers[rank, [PeerWord.ENDPOINT, PeerWord.OUT, PeerWord.IN]] = endpoint, out, into
        words = self._engine.words
        words[StateWord.TRANSPORT], words[StateWord.PEERS] = span.carrier.transport, self._peers.ctypes.data
        words[StateWord.HERE] = self._here.ctypes.data
        words[StateWord.NEWS], words[StateWord.SEEN] = map(ctypes.addressof, (span.news, span.seen))
        self._mapping = self._engine.arena.map  # the transport may read and write there as long as it knows this object

    @classmethod
    def serve(cls, group: Group, span: Span) -> None:
        """Give this group over hosts a relay."""
        if not span.served:
            span.served, group.run = True, cls(group, span).run

    def run(self, address: int, inp: int, out: int, _: int) -> int:
        """Begin a call by the plan at this address, or go on with it; return an outcome, as the kernel does."""
        span, carrier = self._span, self._span.carrier
        span.call, self._plan = self, address
        if self._looks:
            self._looks -= 1
            return WAITING | self._rank << 8
        if carrier.owes:  # a rank may wait for it, which this rank itself waits for
            carrier.progress()
        try:
            if span.late and (late := self._await_late()):
                return WAITING | self._world_ranks.index(late.peer) << 8
            status = carrier.run(self._kernel, (address, inp, out, self._state), self._world_ranks[self._rank])
        except Lost as lost:
            self.failure = lost
            return LOST | self._rank << 8
        if status == DONE:
            span.call = None
        elif status & 0xFF == LOST:
            peer = self._world_ranks[status >> 8 & 0xFFFF]
            self.failure = carrier.lost(peer, self._engine.words[_LOST])
        elif span.must_look():
            self._looks = 1  # two outcomes that name this rank: `attend` raises at its second look
            return WAITING | self._rank << 8
        return status

    def _await_late(self) -> Handle | None:
        """A message to a call that has been given up, if one still comes in: this call may use the same memory."""
        if self._span.still_late():
            self._span.carrier.wait(self._state, _NEVER, 0, 0, 0, _LATE_NS)
        return next(iter(self._span.still_late()), None)

    def drop(self) -> None:
        """Leave the call as it is, for good. What this rank has sent, no rank takes any more, or it does no harm."""
        self._span.call = self.failure = None
        self._looks = 0
        rows, at = (_word(self._plan, word)[0] for word in (PlanWord.NROWS, PlanWord.REQUESTS))
        table, requests = _word(_word(self._plan, PlanWord.ROWS)[0], 0, ROW_WORDS * rows), _word(at, 0, 2 * rows)
        carrier, nothing, handles = self._span.carrier, torch.empty(0, dtype=torch.uint8, device="cpu"), list[Handle]()
        for k in range(2 * rows):
            request, requests[k] = requests[k], 0
            if request > 0:  # else none, or the status of one that could not begin
                row = ROW_WORDS * (k % rows)
                peer, sends = self._world_ranks[table[row + RowWord.PEER]], table[row + RowWord.OP] == Op.SEND
                with suppress(Lost):  # another thread has closed the carrier
                    handles.append(carrier.adopt(request, peer, nothing, sends=sends))
        self._engine.words[_SENDING] = 0
        carrier.give_up(handles)
        carrier.users.add(self)
        self._span.late += [handle for handle in handles if not handle.sends]


def _word(address: int, first: int, count: int = 1) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * count).from_address(address + 8 * first)
