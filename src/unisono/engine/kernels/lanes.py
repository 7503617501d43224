"""Lanes: the threads of a rank that share a long move of a program.

The thread of the call cuts the move into pieces. It and its helpers take pieces until none is left. One of them copies
or combines each element, just as a lone thread would, so results have the same bits. Then the thread of the call waits
for the pieces that helpers have taken. A helper that comes late takes fewer pieces, or none. So helpers may start, end
and be held up at any time, and they never wait for peers.

`LaneWord.JOB` has the number of the job, the number of its pieces, and how often a lane has tried to take one. A lane
adds 1, and has taken the piece of the number that was there before, if the job has so many pieces. The words that say
what the job is about change only when all of its pieces are finished; so they belong to the job of a piece that a lane
has taken, whatever job the lane had expected.

A helper sleeps in a futex until the number of the job changes. It says so first, by an addition; the thread of the call
exchanges the word of the job, then looks whether a helper sleeps. Both are full fences: the helper sees the new number,
or the thread sees the sleeper.
"""

from __future__ import annotations

from ...base.linux import FUTEX
from ..compile.program import CACHE_LINE, DONE, LaneWord, PlanWord, RowWord, StateWord
from .atomics import add, futex_wait, load, load_acquire, pause, sched_yield, store, store_release, swap, syscall
from .compiled import compiled
from .move import get, move, put

_BITS = 16
_MOST = (1 << _BITS) - 1
_FUTEX_WAKE, _EVERYBODY = 1, 0x7FFFFFFF
_HELPER_SPINS, _SPINS = 2000, 200
"""How often a helper looks for another job before it sleeps: for some 50 µs, longer than most waits within a call. And
how often the thread of the call looks for pieces that are not finished, before it yields.
"""
_PIECES = 4
"""Pieces for each lane: the others do the share of a lane that is held up, but for one piece."""
_SLEEP_NS = 1_000_000_000


@compiled
def _piece(lanes, k, own, scratch):  # type: ignore[no-untyped-def]
    """Copy or combine piece k of the present job. own: where this thread has the addresses."""
    plan, row, piece = get(lanes, LaneWord.PLAN), get(lanes, LaneWord.ROW), get(lanes, LaneWord.PIECE)
    state, refs, addresses = get(lanes, LaneWord.STATE), get(lanes, LaneWord.REFS), get(lanes, LaneWord.ADDRESSES)
    for j in range(get(row, RowWord.NIN) + get(row, RowWord.NOUT)):
        store(own + 8 * j, load(addresses + 8 * j) + k * piece * get(plan, PlanWord.ITEM))
    count = min(piece, get(lanes, LaneWord.COUNT) - k * piece)
    status = move(plan, row, refs, count, own, scratch, state)
    if status != DONE:
        store_release(lanes + 8 * LaneWord.STATUS, status)


@compiled
def _take(lanes, own, scratch):  # type: ignore[no-untyped-def]
    """Take pieces of the present job until none is left."""
    while True:
        job = add(lanes + 8 * LaneWord.JOB, 1)
        if job & _MOST >= job >> _BITS & _MOST:
            return
        _piece(lanes, job & _MOST, own, scratch)
        add(lanes + 8 * LaneWord.FINISHED, 1)


@compiled
def move_by_lanes(plan, row, refs, n, addresses, state):  # type: ignore[no-untyped-def]
    """Do as `move` does, by all lanes of the plan if it is worth it."""
    item, scratch, wanted = get(plan, PlanWord.ITEM), get(state, StateWord.SCRATCH), get(plan, PlanWord.LANES)
    if wanted <= 1 or n * item < 2 * get(plan, PlanWord.LANE_BYTES):
        return move(plan, row, refs, n, addresses, scratch, state)
    lanes = get(state, StateWord.LANES)
    if swap(lanes + 8 * LaneWord.BUSY, 1) != 0:  # in a call of another group, on another thread
        return move(plan, row, refs, n, addresses, scratch, state)
    nbytes = max(get(plan, PlanWord.LANE_BYTES), n * item // (_PIECES * wanted))
    piece = (nbytes + CACHE_LINE - 1) // CACHE_LINE * CACHE_LINE // item
    pieces = (n + piece - 1) // piece
    put(lanes, LaneWord.PLAN, plan)
    put(lanes, LaneWord.ROW, row)
    put(lanes, LaneWord.REFS, refs)
    put(lanes, LaneWord.COUNT, n)
    put(lanes, LaneWord.PIECE, piece)
    put(lanes, LaneWord.ADDRESSES, addresses)
    put(lanes, LaneWord.STATE, state)
    put(lanes, LaneWord.STATUS, DONE)
    due = get(lanes, LaneWord.DUE) + pieces
    put(lanes, LaneWord.DUE, due)
    number = (load_acquire(lanes + 8 * LaneWord.JOB) >> 2 * _BITS) + 1
    swap(lanes + 8 * LaneWord.JOB, number << 2 * _BITS | pieces << _BITS)
    if load_acquire(lanes + 8 * LaneWord.SLEEPERS) > 0:
        syscall(FUTEX, lanes + 8 * LaneWord.JOB + 4, _FUTEX_WAKE, wanted - 1, 0, 0, 0)
    _take(lanes, get(lanes, LaneWord.OWN), scratch)
    looks = 0
    while load_acquire(lanes + 8 * LaneWord.FINISHED) < due:
        looks += 1
        if looks < _SPINS:
            pause()
        else:
            sched_yield()
    status = load_acquire(lanes + 8 * LaneWord.STATUS)
    store_release(lanes + 8 * LaneWord.BUSY, 0)
    return status


@compiled
def help_lanes(lanes, own, scratch):  # type: ignore[no-untyped-def]
    """What a helper does until helpers end: it takes pieces, and sleeps while there are none."""
    seen = 0
    while load_acquire(lanes + 8 * LaneWord.END) == 0:
        for _ in range(_HELPER_SPINS):
            if load_acquire(lanes + 8 * LaneWord.JOB) >> 2 * _BITS != seen:
                break
            pause()
        number = load_acquire(lanes + 8 * LaneWord.JOB) >> 2 * _BITS
        if number != seen:
            seen = number
            _take(lanes, own, scratch)
        else:
            add(lanes + 8 * LaneWord.SLEEPERS, 1)
            futex_wait(FUTEX, lanes + 8 * LaneWord.JOB + 4, seen, _SLEEP_NS)
            add(lanes + 8 * LaneWord.SLEEPERS, -1)
    return 0


@compiled
def end(lanes):  # type: ignore[no-untyped-def]
    """Let the helpers end: at once, or when they have finished a piece."""
    store_release(lanes + 8 * LaneWord.END, 1)
    add(lanes + 8 * LaneWord.JOB, 1 << 2 * _BITS)
    syscall(FUTEX, lanes + 8 * LaneWord.JOB + 4, _FUTEX_WAKE, _EVERYBODY, 0, 0, 0)
    return 0
