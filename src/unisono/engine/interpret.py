"""The interpreter: the one loop that runs every program, for every dtype, op and size.

`run` walks the rows of a program once per segment. It returns DONE, or early with a reason; called again with the same
arguments it goes on where it stopped. Peers are seen through their control lines only:

    word 0        progress: segment << STEP_BITS | step, written by its rank only, never decreasing
    words 1, 2    signature << 32 | number of the call, for even and odd calls: the rank has entered that call
    words 3 .. 6  where its input and output lie in its heap, for even and odd calls
"""

from __future__ import annotations

from .atomics import call_combine, load, load_acquire, memcpy, store, store_release
from .compiled import compiled
from .program import OUT, STAGE, STEP_BITS, Op, PlanWord, RowWord, StateWord
from .waiting import came, wait

__all__ = ["BLOCK", "DISAGREE", "DONE", "ENTERED", "IN_OFFSET", "OUT_OFFSET", "WAITING", "run"]

DONE, WAITING, DISAGREE = 0, 1, 2
"""What run returns: finished; WAITING | rank << 8: nothing new from that rank; DISAGREE | rank << 8: other call."""

BLOCK = 16 << 10
"""Bytes that are combined at a time before they are copied on: they stay in the first-level cache."""

ENTERED, IN_OFFSET, OUT_OFFSET = 1, 3, 5
"""Words of a control line for even calls; the next word is for odd calls."""

# Numba takes module constants as literals, but not members of an enumeration.
_WAIT, _GATE = int(Op.WAIT), int(Op.GATE)
_SUB, _NIN, _FIRST, _NOUT, _POST, _LAST, _EXTENT = (8 * k for k in range(int(RowWord.SUB), int(RowWord.EXTENT) + 1))
_NROWS, _ROWS, _REFS, _TOTAL, _PIECE, _PER, _ITEM, _ALIGN = (8 * k for k in range(8))
_COMBINE, _FINISH, _SLOT, _TAG, _BASE, _READERS, _SIGNATURE, _GATE_STEP, _SHARED, _IN_LIST, _OUT_LIST, _EXTENTS = (
    8 * k for k in range(int(PlanWord.COMBINE), int(PlanWord.WORDS))
)
_SEGMENT, _PC, _OFFSET, _RANKS, _ME, _CONTROL, _STAGING, _STRIDE, _HALF, _SPINS, _SPIN_NOW, _QUICK = (
    8 * k for k in range(12)
)
_LOOK_UP, _CALL, _SCRATCH, _CLOCK, _FLOOR, _READERS_NOW, _ADDRESSES = (
    8 * int(w)
    for w in (
        StateWord.LOOK_UP_NS, StateWord.CALL, StateWord.SCRATCH, StateWord.CLOCK, StateWord.FLOOR, StateWord.READERS_0,
        StateWord.ADDRESSES,
    )
)  # fmt: skip
_LINE = 128
_ROW, _REF = 64, 32


@compiled
def _wait(address, goal, exact, state):  # type: ignore[no-untyped-def]
    """Wait for a word of a peer: 1 when it has come, 0 when it is time to look at the peers."""
    most, quick, now = load(state + _SPINS), load(state + _QUICK), state + _SPIN_NOW
    return wait(address, goal, exact, 0, 0, most, quick, now, 0, load(state + _LOOK_UP))


@compiled
def _progress(control, rank, goal, state):  # type: ignore[no-untyped-def]
    """Has the rank posted this step? Remembers the latest that it saw of it."""
    known = load(state + _ADDRESSES) + 8 * rank
    if load(state + _FLOOR) >= goal or load(known) >= goal:
        return 1
    address = control + _LINE * rank
    if load_acquire(address) < goal and _wait(address, goal, False, state) == 0:
        return 0
    store(known, load_acquire(address))
    return 1


@compiled
def _gate(plan, half, inp, out, state):  # type: ignore[no-untyped-def]
    """Enter the call, and wait until everybody has entered it with the same signature. DONE, WAITING or DISAGREE.

    A tag is the signature in front of the payload in the staging half; otherwise it stands in the control line.
    """
    ranks, me, number = load(state + _RANKS), load(state + _ME), load(state + _CALL)
    control, odd = load(state + _CONTROL), 8 * (number & 1)
    mine = (load(plan + _SIGNATURE) << 32) | (number & 0xFFFFFFFF)
    first, stride = control + 8 * ENTERED + odd, _LINE
    addresses, heaps = load(state + _ADDRESSES) + 8 * ranks, load(state + _ADDRESSES) + 24 * ranks
    if load(plan + _TAG):
        first, stride = half, load(state + _STRIDE)
    shared = load(plan + _SHARED)
    if shared:
        line = control + _LINE * me + odd
        store(line + 8 * IN_OFFSET, inp - load(heaps + 8 * me))
        store(line + 8 * OUT_OFFSET, out - load(heaps + 8 * me))
    store_release(first + stride * me, mine)
    for k in range(1, ranks):
        rank = me + k
        if rank >= ranks:
            rank -= ranks
        seen = load_acquire(first + stride * rank)
        if seen != mine:
            if not came(seen, mine, True):
                if _wait(first + stride * rank, mine, True, state) == 0:
                    return WAITING | rank << 8
                seen = load_acquire(first + stride * rank)
            if seen != mine:
                return DISAGREE | rank << 8
        if shared:
            line = control + _LINE * rank + odd
            store(addresses + 16 * rank, load(heaps + 8 * rank) + load(line + 8 * IN_OFFSET))
            store(addresses + 16 * rank + 8, load(heaps + 8 * rank) + load(line + 8 * OUT_OFFSET))
    return DONE


@compiled
def _move(plan, row, refs, n, item, ins, outs, block, scratch, ranks):  # type: ignore[no-untyped-def]
    """Copy or combine n elements from the addresses at ins to those at outs."""
    nin, nout, nbytes = load(row + _NIN), load(row + _NOUT), n * item
    if nin > 1:
        function = load(plan + _FINISH) if load(row + _LAST) else load(plan + _COMBINE)
        first = refs + _REF * (load(row + _FIRST) + nin)
        staged = load(first + _REF * (nout - 1)) == STAGE
        if not staged or nbytes <= BLOCK // 4:
            call_combine(function, outs, nout, ins, nin, n, ranks)
            return
        # A store to a line that a peer has read must fetch it first; memcpy takes whole lines unread. So combine a
        # block into the tensor (or a scratch block), and copy it to the staging area while it is hot.
        target = load(outs)
        kept = 0 if load(first) == STAGE else 1
        done = 0
        while done < nbytes:
            size = min(block, nbytes - done)
            hot = target + done if kept else scratch
            store(outs, hot)
            call_combine(function, outs, 1, ins, nin, size // item, ranks)
            for k in range(kept, nout):
                memcpy((load(outs + 8 * k) if k else target) + done, hot, size)
            for k in range(nin):
                store(ins + 8 * k, load(ins + 8 * k) + size)
            done += size
    elif nbytes == 8:
        word = load(load(ins))
        for k in range(nout):
            store(load(outs + 8 * k), word)
    elif nout == 1:
        if load(outs) != load(ins):
            memcpy(load(outs), load(ins), nbytes)
    else:
        done = 0
        while done < nbytes:
            size = min(block, nbytes - done)
            for k in range(nout):
                memcpy(load(outs + 8 * k) + done, load(ins) + done, size)
            done += size


@compiled
def run(plan, inp, out, state):  # type: ignore[no-untyped-def]
    """Run a plan on the tensors at these addresses, from the start or from where the last return left it."""
    segment, pc, offset = load(state + _SEGMENT), load(state + _PC), load(state + _OFFSET)
    ranks, me, control = load(state + _RANKS), load(state + _ME), load(state + _CONTROL)
    staging, stride, half_bytes = load(state + _STAGING), load(state + _STRIDE), load(state + _HALF)
    rows, refs, nrows = load(plan + _ROWS), load(plan + _REFS), load(plan + _NROWS)
    total, piece, per, item = load(plan + _TOTAL), load(plan + _PIECE), load(plan + _PER), load(plan + _ITEM)
    slot, base = load(plan + _SLOT), load(plan + _BASE)
    in_list, out_list, extents = load(plan + _IN_LIST), load(plan + _OUT_LIST), load(plan + _EXTENTS)
    known = load(state + _ADDRESSES)  # what was last seen of each rank's progress; then its tensors; then its heap
    tensors = known + 8 * ranks
    ins = known + 32 * ranks
    outs = ins + 8 * ranks + 8
    store(tensors + 16 * me, inp)
    store(tensors + 16 * me + 8, out)
    posted = control + _LINE * me
    block = BLOCK // item * item
    while True:
        half = staging + (segment & 1) * half_bytes
        if pc < 0:  # whoever read this half two segments ago must be past it
            readers = state + _READERS_NOW + 8 * (segment & 1)
            flags = load(readers)
            if flags:
                for rank in range(ranks):
                    if load(flags + 8 * rank) and _progress(control, rank, (segment - 1) << STEP_BITS, state) == 0:
                        store(state + _SEGMENT, segment)
                        store(state + _PC, -1)
                        store(state + _OFFSET, offset)
                        return WAITING | rank << 8
            store(readers, load(plan + _READERS))
            pc = 0
        span = min(piece * per, total - offset)
        cut = piece
        if span < piece * per and per > 1:
            align = load(plan + _ALIGN)
            cut = ((span + per - 1) // per + align - 1) // align * align
        while pc < nrows:
            row = rows + _ROW * pc
            kind = load(row)
            if kind == _WAIT:
                rank = load(row + 8)
                if _progress(control, rank, (segment << STEP_BITS) + load(row + 16), state) == 0:
                    store(state + _SEGMENT, segment)
                    store(state + _PC, pc)
                    store(state + _OFFSET, offset)
                    return WAITING | rank << 8
            elif kind == _GATE:
                if offset == 0:
                    status = _gate(plan, half, inp, out, state)
                    if status != DONE:
                        store(state + _SEGMENT, segment)
                        store(state + _PC, pc)
                        store(state + _OFFSET, offset)
                        return status
                    store(state + _FLOOR, (segment << STEP_BITS) + load(plan + _GATE_STEP))
                elif load(row + _POST):
                    store_release(posted, (segment << STEP_BITS) + load(row + _POST))
            else:
                most = span
                if extents != 0:
                    most = min(span, load(extents + 8 * load(row + _EXTENT)) - offset)
                n = max(0, min(cut, most - load(row + _SUB) * cut))
                if n > 0:
                    nin, nout = load(row + _NIN), load(row + _NOUT)
                    for k in range(nin + nout):
                        ref = refs + _REF * (load(row + _FIRST) + k)
                        where, rank = load(ref), load(ref + 8)
                        if where == STAGE:
                            address = half + rank * stride + base + load(ref + 16) * slot
                        else:
                            address = load(tensors + 16 * rank + 8 * where)
                            if (out_list if where == OUT else in_list) != 0:
                                address = load(address + 8 * load(ref + 16)) + (offset + load(ref + 24) * cut) * item
                            else:
                                address += (load(ref + 16) * total + offset + load(ref + 24) * cut) * item
                        store(ins + 8 * k if k < nin else outs + 8 * (k - nin), address)
                    if nin > 0:
                        _move(plan, row, refs, n, item, ins, outs, block, load(state + _SCRATCH), ranks)
                if load(row + _POST):
                    store_release(posted, (segment << STEP_BITS) + load(row + _POST))
            pc += 1
        offset += span
        segment += 1
        pc = -1
        store_release(posted, segment << STEP_BITS)
        if offset >= total:
            break
    store(state + _SEGMENT, segment)
    store(state + _PC, -1)
    store(state + _OFFSET, 0)
    store(state + _CALL, load(state + _CALL) + 1)
    return DONE
