"""The rows of messages between hosts: SEND and RECV.

When a segment begins, the messages that left this staging half two segments ago must have left; then the receives of
the segment are posted. A call ends when all its messages have left. So a message uses its slot as a peer does that
reads or writes it, and no message of an ended call uses any memory.
"""

from __future__ import annotations

from ..compile.program import (
    DONE,
    LOST,
    ROW_BYTES,
    WAITING,
    Op,
    PeerWord,
    PlanWord,
    RowWord,
    StateWord,
    TransportWord,
)  # fmt: skip
from .atomics import call_receive, call_send, call_transport, load, store
from .compiled import compiled
from .move import get, put
from .transport_progress import settle

_ALL_BITS = -1
_SEGMENT_ODD, _TAG_ODD, _TAG_BITS = -0x2E2AC13EF8E9E6ED, -0x61C8864680B583EB, 41


@compiled
def elements(plan, row, span, cut, offset):  # type: ignore[no-untyped-def]
    """How many elements of this segment a row moves."""
    most, counts = span, get(plan, PlanWord.COUNTS)
    if counts != 0:
        most = min(span, load(counts + 8 * get(row, RowWord.COUNT_INDEX)) - offset)
    return max(0, min(cut, most - get(row, RowWord.SUB) * cut))


@compiled
def _tag(plan, row, segment):  # type: ignore[no-untyped-def]
    """The tag of a message: 41 bits of plan, segment and row. Messages near each other have different tags.

    A message that no rank has taken has the tag of a later one with a probability of 2^-41.
    """
    at = get(plan, PlanWord.TAGS) + segment * _SEGMENT_ODD + get(row, RowWord.MESSAGE)
    return at * _TAG_ODD >> 23 & ((1 << _TAG_BITS) - 1)


@compiled
def _request(plan, pc, segment):  # type: ignore[no-untyped-def]
    """Where the transport's request of a row is."""
    return get(plan, PlanWord.REQUESTS) + 8 * ((segment & 1) * get(plan, PlanWord.NROWS) + pc)


@compiled
def _slot(plan, row, half, state):  # type: ignore[no-untyped-def]
    """The address of the staging slot of a message."""
    area = half + get(state, StateWord.ME) * get(state, StateWord.STAGE_STRIDE) + get(plan, PlanWord.BASE)
    return area + get(row, RowWord.SLOT) * get(plan, PlanWord.SLOT_BYTES)


@compiled
def over(at, row, limit_ns, state):  # type: ignore[no-untyped-def]
    """DONE if the message of a row, whose request is at this address, is over; LOST, or, after limit_ns, WAITING."""
    request, peer = load(at), get(row, RowWord.PEER)
    if request == 0:
        return DONE
    status, transport = request, get(state, StateWord.TRANSPORT)
    if not get(transport, TransportWord.FIRST_ERROR) <= request < 0:
        status = call_transport(get(transport, TransportWord.STATUS), request)
        if status == get(transport, TransportWord.UNDER_WAY):
            waited_ns = get(state, StateWord.WAITED_NS)
            news, seen = get(state, StateWord.NEWS), get(state, StateWord.SEEN)
            status = settle(request, waited_ns, limit_ns, transport, news, seen)
            if status == get(transport, TransportWord.UNDER_WAY):
                put(state, StateWord.WAITED_NS, waited_ns + limit_ns)
                return WAITING | peer << 8
        put(state, StateWord.WAITED_NS, 0)
        call_transport(get(transport, TransportWord.FREE), request)
    store(at, 0)
    if get(row, RowWord.OP) == Op.SEND:
        put(state, StateWord.SENDING, get(state, StateWord.SENDING) - 1)
    if status:
        put(state, StateWord.LOST, status)
        return LOST | peer << 8
    return DONE


@compiled
def have_left(plan, segment, limit_ns, state):  # type: ignore[no-untyped-def]
    """Wait until all that leaves the half of this segment has left."""
    rows, pc = get(plan, PlanWord.ROWS), 0
    while pc < get(plan, PlanWord.NROWS) and get(state, StateWord.SENDING) > 0:
        row = rows + ROW_BYTES * pc
        if get(row, RowWord.OP) == Op.SEND:
            status = over(_request(plan, pc, segment), row, limit_ns, state)
            if status != DONE:
                return status
        pc += 1
    return DONE


@compiled
def post_receives(plan, segment, half, offset, span, cut, limit_ns, state):  # type: ignore[no-untyped-def]
    """Begin a segment: wait until its half has been sent, then post its receives. DONE, WAITING or LOST."""
    status = have_left(plan, segment, limit_ns, state)
    if status != DONE:
        return status
    transport, peers = get(state, StateWord.TRANSPORT), get(state, StateWord.PEERS)
    receive, worker, how = (
        get(transport, TransportWord.RECEIVE),
        get(transport, TransportWord.WORKER),
        get(transport, TransportWord.HOW),
    )
    for pc in range(get(plan, PlanWord.NROWS)):
        row = get(plan, PlanWord.ROWS) + ROW_BYTES * pc
        empty = get(row, RowWord.EMPTY)
        if get(row, RowWord.OP) == Op.RECV and (offset == 0 or empty == 0):
            nbytes = 0 if empty else elements(plan, row, span, cut, offset) * get(plan, PlanWord.ITEM)
            peer = peers + 8 * PeerWord.WORDS * get(row, RowWord.PEER)
            tag = get(peer, PeerWord.IN) | _tag(plan, row, segment)
            place = _slot(plan, row, half, state)
            store(_request(plan, pc, segment), call_receive(receive, worker, place, nbytes, tag, _ALL_BITS, how))
    return DONE


@compiled
def send_or_receive(plan, pc, segment, half, offset, span, cut, limit_ns, state):  # type: ignore[no-untyped-def]
    """Do a SEND or a RECV: DONE, WAITING or LOST."""
    row = get(plan, PlanWord.ROWS) + ROW_BYTES * pc
    empty, at = get(row, RowWord.EMPTY), _request(plan, pc, segment)
    if offset != 0 and empty:
        return DONE
    if get(row, RowWord.OP) == Op.RECV:
        return over(at, row, limit_ns, state)
    transport = get(state, StateWord.TRANSPORT)
    send, how = get(transport, TransportWord.SEND), get(transport, TransportWord.HOW)
    nbytes = 0 if empty else elements(plan, row, span, cut, offset) * get(plan, PlanWord.ITEM)
    peer = get(state, StateWord.PEERS) + 8 * PeerWord.WORDS * get(row, RowWord.PEER)
    tag = get(peer, PeerWord.OUT) | _tag(plan, row, segment)
    request = call_send(send, get(peer, PeerWord.ENDPOINT), _slot(plan, row, half, state), nbytes, tag, how)
    if request == 0:
        return DONE
    store(at, request)
    put(state, StateWord.SENDING, get(state, StateWord.SENDING) + 1)
    if get(transport, TransportWord.FIRST_ERROR) <= request < 0:
        return over(at, row, limit_ns, state)
    return DONE


@compiled
def await_sent(plan, segment, limit_ns, state):  # type: ignore[no-untyped-def]
    """End a call: wait until all its messages have left. WAITING | this rank << 8 if there is news at which it has not
    looked: messages of a rank that has gone may still come, so that no wait is long.

    A message to a rank that has gone by now is of no concern to this rank: its next call finds that out.
    """
    status = LOST
    while status & 0xFF == LOST:
        status = have_left(plan, segment, limit_ns, state)
        if status == DONE:
            status = have_left(plan, segment + 1, limit_ns, state)
    if status == DONE and load(get(state, StateWord.NEWS)) != load(get(state, StateWord.SEEN)):
        status = WAITING | get(state, StateWord.ME) << 8
    return status
