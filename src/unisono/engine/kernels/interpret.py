"""The interpreter: one compiled loop that runs every program, for every dtype, op and size.

`run` executes the rows of a program once per segment. It returns DONE, or earlier with a reason; called again with the
same arguments, it continues where it stopped. Of its peers it reads the control lines (`LineWord`), the staging
areas (`CallWord`) and shared tensors. What it keeps from call to call is in its state (`StateWord`).
"""

from __future__ import annotations

from ..compile.program import (
    AT_ONCE,
    BRISK_BYTES,
    CROSSED,
    DISAGREE,
    DONE,
    FAILED,
    IN_TIME,
    LINE_BYTES,
    LOOK_UP_SHARE,
    LOOK_UPS,
    MAPPED,
    OUT,
    PATIENCE_NS,
    REACH,
    REF_BYTES,
    ROW_BYTES,
    STAGE,
    STAGED,
    STEP_BITS,
    WAITING,
    CallWord,
    LineWord,
    Op,
    PlanWord,
    RefWord,
    RowWord,
    StateWord,
)  # fmt: skip
from ..logs.rank_logs import LogWord
from .atomics import acquire_fence, cycles, load, load_acquire, store, store_release
from .compiled import compiled
from .cross_memory import within_reach
from .lanes import move_by_lanes
from .messages import await_sent, elements, post_receives, send_or_receive
from .move import get, put
from .transport_progress import wait as wait_and_move
from .waiting import publish_and_wake, wait


@compiled
def longest_stay(state):  # type: ignore[no-untyped-def]
    """How long the kernel may wait before it returns to Python, in nanoseconds."""
    waited_ns, look_up_ns = get(state, StateWord.WAITED_NS), get(state, StateWord.LOOK_UP_NS)
    return min(max(look_up_ns, waited_ns // LOOK_UP_SHARE), LOOK_UPS * look_up_ns)


@compiled
def wait_for(address, goal, rank, state):  # type: ignore[no-untyped-def]
    """Wait for a word of this rank: 1 when it has reached the goal, 0 when it is time to return to Python."""
    most, slow = get(state, StateWord.SPINS), get(state, StateWord.SLOW_YIELD_CYCLES)
    waited_ns, limit_ns = get(state, StateWord.WAITED_NS), longest_stay(state)
    if get(state, StateWord.SENDING) > 0:  # peers may wait for what only this thread moves
        done = wait_and_move(address, goal, 0, 0, waited_ns, limit_ns, get(state, StateWord.TRANSPORT))
        put(state, StateWord.WAITED_NS, 0 if done else waited_ns + limit_ns)
        return done
    sleeps, learned = get(state, StateWord.SLEEPS), state + 8 * StateWord.LEARNED
    asleep = get(state, StateWord.CONTROL) + LINE_BYTES * rank + 8 * LineWord.ASLEEP
    before_ns = max(waited_ns, PATIENCE_NS + 1) if sleeps == AT_ONCE else waited_ns
    done = wait(address, goal, 0, 0, most, slow, learned, before_ns, limit_ns, asleep)
    put(state, StateWord.WAITED_NS, 0 if done else waited_ns + limit_ns)
    return done


@compiled
def _progress(control, rank, goal, state):  # type: ignore[no-untyped-def]
    """Wait until a rank has posted this step: 1, or 0 as `wait_for`."""
    address = control + LINE_BYTES * rank + 8 * LineWord.PROGRESS
    if get(state, StateWord.FLOOR) >= goal or load_acquire(address) >= goal:
        return 1
    return wait_for(address, goal, rank, state)


@compiled
def _entry(state):  # type: ignore[no-untyped-def]
    """The address of the present call's entry in the log."""
    return get(state, StateWord.LOG) + 8 * LogWord.WORDS * (get(state, StateWord.CALL) & get(state, StateWord.LOG_MASK))


@compiled
def log_entry(note, state):  # type: ignore[no-untyped-def]
    """Note in the log that this rank is in this call, unless that is noted already."""
    number, entry = get(state, StateWord.CALL), _entry(state)
    store_release(entry + 8 * LogWord.NOTE, note)  # after the numbers of all earlier calls
    if get(entry, LogWord.NUMBER) != number:
        store_release(entry + 8 * LogWord.ENTERED, cycles())
        store_release(entry + 8 * LogWord.NUMBER, number)


@compiled
def log_end(state):  # type: ignore[no-untyped-def]
    """Note in the log that this rank leaves the call."""
    store_release(_entry(state) + 8 * LogWord.LEFT, cycles())  # after the number


@compiled
def _gate(plan, half, segment, inp, out, state):  # type: ignore[no-untyped-def]
    """Enter the call, and wait until every rank has entered it with the same signature.

    Number and signature are in the control line, or inline, in the staging half, before the payload.
    Returns DONE, WAITING, DISAGREE, FAILED with this rank: it has not entered, as peers would not reach its tensors; or
    STAGED: peers reach some ranks' tensors only. Then this rank runs the call from its beginning, staged, and enters it
    again: it posts the step of the gate, for which the ranks wait that have staged the call at once.
    """
    ranks, me, number = get(state, StateWord.RANKS), get(state, StateWord.ME), get(state, StateWord.CALL)
    control, odd = get(state, StateWord.CONTROL), 8 * (number & 1)
    mine = get(plan, PlanWord.SIGNATURE)
    addresses, heaps = get(state, StateWord.TENSORS), get(state, StateWord.HEAPS)
    numbers, stride = control + 8 * LineWord.NUMBER + odd, LINE_BYTES
    to_signature = 8 * (LineWord.SIGNATURE - LineWord.NUMBER)
    if get(plan, PlanWord.INLINE):
        numbers, stride = half + 8 * CallWord.NUMBER, get(state, StateWord.STAGE_STRIDE)
        to_signature = 8 * (CallWord.SIGNATURE - CallWord.NUMBER)
        if get(plan, PlanWord.INLINE) == 2:  # a rank whose tensors peers can reach looks there
            store(control + LINE_BYTES * me + 8 * LineWord.SIGNATURE + odd, mine)
            store_release(control + LINE_BYTES * me + 8 * LineWord.NUMBER + odd, number)
    shared = get(plan, PlanWord.SHARED)
    if shared:
        line = control + LINE_BYTES * me + odd
        heap = load(heaps + 8 * me) if shared == MAPPED else 0
        if shared == CROSSED and load(numbers + stride * me) < number:
            pid = load(control + LINE_BYTES * me + 8 * LineWord.PID)
            error = within_reach(pid, inp, out, get(state, StateWord.SCRATCH))
            if error:
                return FAILED | me << 8 | error << 32
        put(line, LineWord.IN_OFFSET, inp - heap)
        put(line, LineWord.OUT_OFFSET, out - heap)
    reached = (segment << STEP_BITS) + get(plan, PlanWord.GATE_STEP)
    again = load(numbers + stride * me) == number and load(numbers + stride * me + to_signature) != mine
    store_release(numbers + stride * me + to_signature, mine)
    publish_and_wake(numbers + stride * me, number, control + LINE_BYTES * me + 8 * LineWord.ASLEEP)
    if again:
        publish_and_wake(
            control + LINE_BYTES * me + 8 * LineWord.PROGRESS, reached, control + LINE_BYTES * me + 8 * LineWord.ASLEEP
        )
    log_entry(get(plan, PlanWord.NOTE), state)
    here = get(state, StateWord.HERE)
    for k in range(1, ranks):
        rank = me + k
        if rank >= ranks:
            rank -= ranks
        if here != 0 and load(here + 8 * rank) == 0:
            continue  # messages tell
        theirs = numbers + stride * rank
        if load_acquire(theirs) < number and wait_for(theirs, number, rank, state) == 0:
            return WAITING | rank << 8
        said = load_acquire(theirs + to_signature)
        if said != mine:
            if (said ^ mine) & ~REACH != 0:
                return DISAGREE | rank << 8
            if shared:
                return STAGED | rank << 8
            if _progress(control, rank, reached, state) == 0:
                return WAITING | rank << 8
        if shared:
            line = control + LINE_BYTES * rank + odd
            heap = load(heaps + 8 * rank) if shared == MAPPED else 0
            store(addresses + 16 * rank, heap + get(line, LineWord.IN_OFFSET))
            store(addresses + 16 * rank + 8, heap + get(line, LineWord.OUT_OFFSET))
    return DONE


@compiled
def _no_rank_has_left(control, number, signature, ranks):  # type: ignore[no-untyped-def]
    """DONE if no rank has given up the call, else WAITING: values read from the tensors of such a rank are invalid."""
    odd = 8 * (number & 1)
    acquire_fence()  # the values have been read before the signatures are
    for rank in range(ranks):
        line = control + LINE_BYTES * rank + odd
        if load_acquire(line + 8 * LineWord.NUMBER) == number and get(line, LineWord.SIGNATURE) != signature:
            return WAITING | rank << 8
    return DONE


@compiled
def _has_withdrawn(rank, plan, state):  # type: ignore[no-untyped-def]
    """Has a rank of this host left this call because of a rank of another host? Then its steps mean nothing."""
    line, odd = get(state, StateWord.CONTROL) + LINE_BYTES * rank, get(state, StateWord.CALL) & 1
    return load_acquire(line + 8 * (LineWord.SIGNATURE + odd)) != get(plan, PlanWord.SIGNATURE)


@compiled
def _readers_are_past(control, segment, ranks, state):  # type: ignore[no-untyped-def]
    """Wait until no rank still reads what this staging half held two segments ago. DONE or WAITING."""
    flags = load(state + 8 * StateWord.READERS_0 + 8 * (segment & 1))
    if flags:
        for rank in range(ranks):
            if load(flags + 8 * rank) and _progress(control, rank, (segment - 1) << STEP_BITS, state) == 0:
                return WAITING | rank << 8
    return DONE


@compiled
def run(plan, inp, out, state):  # type: ignore[no-untyped-def]
    """Run a plan on the tensors at these addresses, from the start or from where the last run stopped."""
    segment, pc, offset = get(state, StateWord.SEGMENT), get(state, StateWord.PC), get(state, StateWord.OFFSET)
    ranks, me, control = get(state, StateWord.RANKS), get(state, StateWord.ME), get(state, StateWord.CONTROL)
    staging, stride = get(state, StateWord.STAGING), get(state, StateWord.STAGE_STRIDE)
    half_bytes = get(state, StateWord.HALF)
    rows, refs, nrows = get(plan, PlanWord.ROWS), get(plan, PlanWord.REFS), get(plan, PlanWord.NROWS)
    stop = get(plan, PlanWord.STOP)
    total, chunk = get(plan, PlanWord.TOTAL), get(plan, PlanWord.CHUNK)
    per, item = get(plan, PlanWord.PER_BLOCK), get(plan, PlanWord.ITEM)
    slot, base = get(plan, PlanWord.SLOT_BYTES), get(plan, PlanWord.BASE)
    in_list, out_list = get(plan, PlanWord.IN_LIST), get(plan, PlanWord.OUT_LIST)
    tensors, addresses = get(state, StateWord.TENSORS), get(state, StateWord.ADDRESSES)
    store(tensors + 16 * me, inp)
    store(tensors + 16 * me + 8, out)
    posted, asleep = control + LINE_BYTES * me + 8 * LineWord.PROGRESS, control + LINE_BYTES * me + 8 * LineWord.ASLEEP
    shared, status = get(plan, PlanWord.SHARED), DONE
    if get(plan, PlanWord.REQUESTS):
        long = get(state, StateWord.SPINS) == 0 and total * item > BRISK_BYTES
        put(state, StateWord.SLEEPS, AT_ONCE if long else IN_TIME)
    if not get(plan, PlanWord.INLINE):  # else at the gate: there, no peer waits while this reads the clock
        log_entry(get(plan, PlanWord.NOTE), state)
    while True:
        half = staging + (segment & 1) * half_bytes
        if pc < 0:
            status = _readers_are_past(control, segment, ranks, state)
            if status != DONE:
                break
        span = min(chunk * per, total - offset)  # elements of a block in this segment
        cut = chunk  # elements of a chunk in it: fewer in a short segment, the last one
        if span < chunk * per and per > 1:
            align = get(plan, PlanWord.ALIGN)
            cut = ((span + per - 1) // per + align - 1) // align * align
        if pc < 0:
            if get(plan, PlanWord.REQUESTS):
                status = post_receives(plan, segment, half, offset, span, cut, longest_stay(state), state)
                if status != DONE:
                    break
            store(state + 8 * StateWord.READERS_0 + 8 * (segment & 1), get(plan, PlanWord.READERS))
            pc = 0
        while pc < stop:
            row = rows + ROW_BYTES * pc
            kind = get(row, RowWord.OP)
            if kind == Op.WAIT:
                rank = get(row, RowWord.RANK)
                if _progress(control, rank, (segment << STEP_BITS) + get(row, RowWord.STEP), state) == 0:
                    status = WAITING | rank << 8
                    break
                if offset == 0 and get(plan, PlanWord.REQUESTS) and _has_withdrawn(rank, plan, state):
                    status = WAITING | rank << 8
                    break
            elif kind == Op.GATE and offset == 0:
                status = _gate(plan, half, segment, inp, out, state)
                if status != DONE:
                    break
                put(state, StateWord.FLOOR, (segment << STEP_BITS) + get(plan, PlanWord.GATE_STEP))
            else:
                if kind == Op.MOVE:
                    n = elements(plan, row, span, cut, offset)
                    nin, nout = get(row, RowWord.NIN), get(row, RowWord.NOUT)
                    if n > 0 and nin > 0:
                        for k in range(nin + nout):
                            ref = refs + REF_BYTES * (get(row, RowWord.FIRST_REF) + k)
                            where, rank, index = (
                                get(ref, RefWord.WHERE),
                                get(ref, RefWord.RANK),
                                get(ref, RefWord.BLOCK),
                            )
                            if where == STAGE:
                                address = half + rank * stride + base + index * slot
                            else:
                                address = load(tensors + 16 * rank + 8 * where)
                                done = offset + get(ref, RefWord.SUB) * cut
                                if (out_list if where == OUT else in_list) != 0:
                                    address = load(address + 8 * index) + done * item
                                else:
                                    address += (index * total + done) * item
                            store(addresses + 8 * k, address)
                        status = move_by_lanes(plan, row, refs, n, addresses, state)
                        if status != DONE:
                            break
                elif kind >= Op.SEND:
                    status = send_or_receive(plan, pc, segment, half, offset, span, cut, longest_stay(state), state)
                    if status != DONE:
                        break
                if get(row, RowWord.POST):
                    publish_and_wake(posted, (segment << STEP_BITS) + get(row, RowWord.POST), asleep)
            pc += 1
        if status == DONE and stop < nrows:
            status = WAITING | me << 8
        if status == DONE and shared and offset + span >= total:
            status = _no_rank_has_left(control, get(state, StateWord.CALL), get(plan, PlanWord.SIGNATURE), ranks)
        if status == DONE and get(plan, PlanWord.REQUESTS) and offset + span >= total:
            status = await_sent(plan, segment, longest_stay(state), state)
        if status != DONE:
            break
        offset += span
        segment += 1
        pc = -1
        publish_and_wake(posted, segment << STEP_BITS, asleep)
        if offset >= total:
            offset = 0
            log_end(state)
            put(state, StateWord.CALL, get(state, StateWord.CALL) + 1)
            break
    put(state, StateWord.SEGMENT, segment)
    put(state, StateWord.PC, pc)
    put(state, StateWord.OFFSET, offset)
    return status
