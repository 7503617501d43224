"""Run a tape: copies, combinations, messages and programs, one behind the other; see `engine.tape`."""

from __future__ import annotations

from ..compile.program import DONE, LOST, PASSED, STEP_BITS, WAITING, LineWord, StateWord
from ..tape import (
    COMBINE,
    COPY,
    LEAVE,
    MEET,
    POST,
    ROW_BYTES,
    RUN,
    SEND,
    SERVE,
    TAKE,
    CombineWord,
    CopyWord,
    MeetWord,
    RunWord,
    TapeMessageWord,
    TapeTakeWord,
    TapeWord,
    TransportWord,
)  # fmt: skip
from .atomics import (
    call_combine,
    call_receive,
    call_send,
    call_transport,
    load,
    load_acquire,
    memcpy,
    store,
    usleep,
)
from .compiled import compiled
from .interpret import LINE, log_end, log_entry, longest_stay, wait_for
from .interpret import run as run_program
from .move import get, put
from .transport_progress import wait
from .waiting import publish_and_wake

_PAUSE_US = 100
_ALL_BITS = -1


@compiled
def run(tape):  # type: ignore[no-untyped-def]
    """Go on with a tape: DONE, or, at the row AT, WAITING, LOST or SERVE. It waits, and returns, as the interpreter
    does.
    """
    at, end, transport = get(tape, TapeWord.AT), get(tape, TapeWord.END), get(tape, TapeWord.TRANSPORT)
    state = get(tape, TapeWord.STATE)
    while at < end:
        kind, status = get(at, 0), DONE
        put(tape, TapeWord.AT, at)
        if kind == COPY:
            _copy(tape, at)
        elif kind == COMBINE:
            outs, ins, count = at + 8 * CombineWord.OUT, at + 8 * CombineWord.FIRST, get(at, CombineWord.COUNT)
            inputs = 2 if get(at, CombineWord.SECOND) else 1
            call_combine(get(at, CombineWord.KERNEL), outs, 1, ins, inputs, count, get(at, CombineWord.RANKS))
        elif kind == POST:
            status = _post(at, transport)
        elif kind == SEND:
            status = _send(tape, at, transport)
        elif kind == TAKE:
            status = _take(tape, at, transport)
            while status == WAITING and get(tape, TapeWord.NEWS) and _wait(tape, at, transport, state):
                status = _take(tape, at, transport)
        elif kind in (RUN, MEET):
            sending = _sending(tape, at, transport)
            if sending:
                status = LOST if sending < 0 else SERVE
            elif kind == MEET:
                status = _meet(tape, at)
            else:
                given = get(at, RunWord.ARGUMENTS)
                status = run_program(get(given, 0), get(given, 1), get(given, 2), get(given, 3))
        elif kind == LEAVE:
            status = _leave(tape, state)
        else:
            status = SERVE
        if status:
            return status
        at += ROW_BYTES
    put(tape, TapeWord.AT, at)
    put(tape, TapeWord.SENDING, _sending(tape, end, transport))
    return DONE


@compiled
def _copy(tape, row):  # type: ignore[no-untyped-def]
    to, source, of = get(row, CopyWord.TO), get(row, CopyWord.SOURCE), get(row, CopyWord.OF)
    if of:
        tensor, block = get(tape, of), get(row, CopyWord.BLOCK)
        if block:
            tensor = get(tensor, block - 1)
        if of == TapeWord.IN:
            source += tensor
        else:
            to += tensor
    memcpy(to, source, get(row, CopyWord.NBYTES))


@compiled
def _leave(tape, state):  # type: ignore[no-untyped-def]
    """End the call: DONE, or WAITING | this rank << 8, if there is news at which this rank has not looked."""
    me, segment = get(state, StateWord.ME), get(state, StateWord.SEGMENT) + 1
    if load(get(tape, TapeWord.NEWS)) != load(get(tape, TapeWord.SEEN)):
        return WAITING | me << 8
    mine = get(state, StateWord.CONTROL) + LINE * me
    put(state, StateWord.SEGMENT, segment)
    put(state, StateWord.PC, -1)
    publish_and_wake(mine + 8 * LineWord.PROGRESS, segment << STEP_BITS, mine + 8 * LineWord.ASLEEP)
    log_end(state)
    put(state, StateWord.CALL, get(state, StateWord.CALL) + 1)
    return DONE


@compiled
def _meet(tape, row):  # type: ignore[no-untyped-def]
    """Tell how far this rank is, and wait for another one: DONE, or WAITING | rank << 8. The rank may also have entered
    another call, or have given this one up.
    """
    state, rank, number = get(tape, TapeWord.STATE), get(row, MeetWord.RANK), get(tape, TapeWord.NUMBER)
    control, tells, signature = get(state, StateWord.CONTROL), get(row, MeetWord.TELLS), get(row, MeetWord.SIGNATURE)
    signed = 8 * (LineWord.SIGNATURE + (number & 1))
    if tells >= 0:
        mine = control + LINE * get(state, StateWord.ME)
        if signature:
            log_entry(get(row, MeetWord.NOTE), state)
            store(mine + signed, signature)
        publish_and_wake(mine + 8 * tells, number, mine + 8 * LineWord.ASLEEP)
    if rank >= 0:
        line = control + LINE * rank
        theirs = line + 8 * get(row, MeetWord.WORD)
        if load_acquire(theirs) < number and wait_for(theirs, number, rank, state) == 0:
            return WAITING | rank << 8
        if signature and load(line + signed) != signature:
            usleep(_PAUSE_US)
            return WAITING | rank << 8
    if get(row, MeetWord.PASSES):
        put(state, StateWord.PC, PASSED)
    return DONE


@compiled
def _post(row, transport):  # type: ignore[no-untyped-def]
    """Post a receive."""
    mark = get(row, TapeMessageWord.MARK)
    if mark:
        store(mark, get(row, TapeMessageWord.TO))
    place, nbytes, tag = (
        get(row, TapeMessageWord.PLACE),
        get(row, TapeMessageWord.NBYTES),
        get(row, TapeMessageWord.TAG),
    )
    receive, worker, how = (
        get(transport, TransportWord.RECEIVE),
        get(transport, TransportWord.WORKER),
        get(transport, TransportWord.HOW),
    )
    put(row, TapeMessageWord.REQUEST, call_receive(receive, worker, place, nbytes, tag, _ALL_BITS, how))
    return DONE


@compiled
def _send(tape, row, transport):  # type: ignore[no-untyped-def]
    """Let a payload leave."""
    mark = get(row, TapeMessageWord.MARK)
    if mark:
        store(mark, get(tape, TapeWord.NUMBER))
    place, nbytes, tag = (
        get(row, TapeMessageWord.PLACE),
        get(row, TapeMessageWord.NBYTES),
        get(row, TapeMessageWord.TAG),
    )
    send, endpoint, how = (
        get(transport, TransportWord.SEND),
        get(row, TapeMessageWord.TO),
        get(transport, TransportWord.HOW),
    )
    put(row, TapeMessageWord.REQUEST, call_send(send, endpoint, place, nbytes, tag, how))
    status = _status(tape, row, transport)
    return DONE if status == WAITING else status


@compiled
def _take(tape, row, transport):  # type: ignore[no-untyped-def]
    """Take a message, if it is there. SERVE: its word is, but perhaps not all of it."""
    mark, missing = get(row, TapeTakeWord.MARK), load(get(row, TapeTakeWord.MISSING))
    first = get(tape, TapeWord.FIRST) + get(row, TapeTakeWord.POSTS)
    end = first + ROW_BYTES * get(row, TapeTakeWord.COUNT)
    post = first
    while True:
        while post < end:
            status = _status(tape, post, transport)
            if status == LOST:
                return LOST
            if status == DONE:
                post += ROW_BYTES
            elif call_transport(get(transport, TransportWord.PROGRESS), get(transport, TransportWord.WORKER)) == 0:
                return WAITING if load(mark) == missing else SERVE
        if missing or load(mark) == get(tape, TapeWord.NUMBER):
            return DONE
        while post > first:
            post -= ROW_BYTES
            _post(post, transport)


@compiled
def _wait(tape, row, transport, state):  # type: ignore[no-untyped-def]
    """Wait for the message of a TAKE: 1 when its word is there, 0 when it is time to return to Python."""
    waited_ns, limit_ns, news = get(state, StateWord.WAITED_NS), longest_stay(state), get(tape, TapeWord.NEWS)
    pair = row + 8 * TapeTakeWord.MARK
    wait(news, load(news) + 1, pair, 1, waited_ns, limit_ns, transport)
    done = load(get(row, TapeTakeWord.MARK)) != load(get(row, TapeTakeWord.MISSING))
    put(state, StateWord.WAITED_NS, 0 if done else waited_ns + limit_ns)
    return 1 if done else 0


@compiled
def _status(tape, row, transport):  # type: ignore[no-untyped-def]
    """DONE if the payload of a row is over, WAITING, or LOST. Its request is given back when it is over."""
    request = get(row, TapeMessageWord.REQUEST)
    if request == 0:
        return DONE
    status = request
    if not get(transport, TransportWord.FIRST_ERROR) <= request < 0:
        status = call_transport(get(transport, TransportWord.STATUS), request)
        if status == get(transport, TransportWord.UNDER_WAY):
            return WAITING
        call_transport(get(transport, TransportWord.FREE), request)
    put(row, TapeMessageWord.REQUEST, 0)
    if status:
        put(tape, TapeWord.STATUS, status)
        return LOST
    return DONE


@compiled
def _sending(tape, end, transport):  # type: ignore[no-untyped-def]
    """How many payloads of the rows before `end` the transport may still read; -1: a connection is lost. After the last
    row, this is for the next call to find.
    """
    row, count = get(tape, TapeWord.FIRST), 0
    while row < end:
        if get(row, 0) == SEND:
            status = _status(tape, row, transport)
            if status == LOST:
                return -1
            if status == WAITING:
                count += 1
        row += ROW_BYTES
    return count
