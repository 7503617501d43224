"""Run a tape: copies, combinations and messages at known addresses, one behind the other; see `engine.tape`."""

from __future__ import annotations

from ..compile.program import DONE, LOST, WAITING
from ..tape import COMBINE, COPY, POST, ROW_BYTES, SEND, CombineWord, CopyWord, EngineWord, TapeMessageWord, TapeWord
from .atomics import call_combine, call_engine, call_receive, call_send, load, memcpy, store
from .compiled import compiled
from .move import get, put

_ALL_BITS = -1


@compiled
def run(tape):  # type: ignore[no-untyped-def]
    """Go on with a tape as far as it goes without a wait. Returns DONE, or, at the row AT, WAITING or LOST."""
    at, end, engine = get(tape, TapeWord.AT), get(tape, TapeWord.END), get(tape, TapeWord.ENGINE)
    while at < end:
        kind, status = get(at, 0), 0
        if kind == COPY:
            memcpy(get(at, CopyWord.TO), get(at, CopyWord.SOURCE), get(at, CopyWord.NBYTES))
        elif kind == COMBINE:
            outs, ins, kernel = at + 8 * CombineWord.OUT, at + 8 * CombineWord.FIRST, get(tape, TapeWord.KERNEL)
            call_combine(kernel, outs, 1, ins, 2, get(at, CombineWord.COUNT), 1)
        elif kind == POST:
            _post(at, engine)
        elif kind == SEND:
            status = _send(at, get(tape, TapeWord.NUMBER), engine)
        else:
            status = _take(get(at, TapeMessageWord.MARK), get(tape, TapeWord.NUMBER), engine)
        if status:
            put(tape, TapeWord.AT, at)
            if status == get(engine, EngineWord.UNDER_WAY):
                return WAITING
            put(tape, TapeWord.STATUS, status)
            return LOST
        at += ROW_BYTES
    put(tape, TapeWord.AT, at)
    put(tape, TapeWord.SENDING, _sending(get(tape, TapeWord.FIRST), end, engine))
    return DONE


@compiled
def _post(row, engine):  # type: ignore[no-untyped-def]
    store(get(row, TapeMessageWord.MARK), 0)
    place, nbytes, tag = (
        get(row, TapeMessageWord.PLACE),
        get(row, TapeMessageWord.NBYTES),
        get(row, TapeMessageWord.TAG),
    )
    receive, worker, how = get(engine, EngineWord.RECEIVE), get(engine, EngineWord.ENGINE), get(engine, EngineWord.HOW)
    put(row, TapeMessageWord.REQUEST, call_receive(receive, worker, place, nbytes, tag, _ALL_BITS, how))


@compiled
def _send(row, number, engine):  # type: ignore[no-untyped-def]
    """Let a message leave. Returns the status with which it has failed; else 0."""
    store(get(row, TapeMessageWord.MARK), number)
    place, nbytes, tag = (
        get(row, TapeMessageWord.PLACE),
        get(row, TapeMessageWord.NBYTES),
        get(row, TapeMessageWord.TAG),
    )
    send, endpoint, how = get(engine, EngineWord.SEND), get(row, TapeMessageWord.ENDPOINT), get(engine, EngineWord.HOW)
    put(row, TapeMessageWord.REQUEST, call_send(send, endpoint, place, nbytes, tag, how))
    status = _status(row, engine)
    return 0 if status == get(engine, EngineWord.UNDER_WAY) else status


@compiled
def _take(row, number, engine):  # type: ignore[no-untyped-def]
    """The status of the message that this row has posted, with this number."""
    while True:
        status = _status(row, engine)
        if status == get(engine, EngineWord.UNDER_WAY):
            if call_engine(get(engine, EngineWord.PROGRESS), get(engine, EngineWord.ENGINE)) == 0:
                return status
        elif status or load(get(row, TapeMessageWord.MARK)) == number:
            return status
        else:
            _post(row, engine)


@compiled
def _status(row, engine):  # type: ignore[no-untyped-def]
    """The status of the message of a row: 0 if it is over. Its request is given back then."""
    request = get(row, TapeMessageWord.REQUEST)
    if request == 0:
        return 0
    if get(engine, EngineWord.FIRST_ERROR) <= request < 0:
        put(row, TapeMessageWord.REQUEST, 0)
        return request
    status = call_engine(get(engine, EngineWord.STATUS), request)
    if status != get(engine, EngineWord.UNDER_WAY):
        call_engine(get(engine, EngineWord.FREE), request)
        put(row, TapeMessageWord.REQUEST, 0)
    return status


@compiled
def _sending(row, end, engine):  # type: ignore[no-untyped-def]
    """How many sent messages the engine may still read. A connection that is lost now is for the next call to find."""
    count = 0
    while row < end:
        if get(row, 0) == SEND and _status(row, engine) == get(engine, EngineWord.UNDER_WAY):
            count += 1
        row += ROW_BYTES
    return count
