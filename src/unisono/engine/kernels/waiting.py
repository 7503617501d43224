"""How a rank waits for shared memory to change: it spins, yields its processor, then sleeps until it is woken.

A yield gives the processor to another thread. A rank that waits gives it back within microseconds. A process that
computes gives it back after its time slice, some milliseconds. A rank that wakes from sleep runs ahead of a process
that computes. So a rank sleeps once it has waited long, and at once where slow yields have followed each other soon.

The sleeper pays for the fence, the writer for one load. A word says that ranks sleep until a certain rank writes
(`LineWord.ASLEEP`). It has two halves, a flag and a counter. A rank that goes to sleep reads the counter, sets the
flag, lets the system put a full fence into every process that has registered (`membarrier`), looks once more, and only
then sleeps: until the counter changes. A rank that has written loads the flag, without a fence of its own. If it is
set, the rank clears it, raises the counter and wakes all sleepers.

So either the sleeper sees what was written, or the writer sees the flag. The counter is for several sleepers: the
writer may have cleared the flag of one, which must not take another's flag for its own.
"""

from __future__ import annotations

from ...base.linux import FUTEX, MEMBARRIER
from ..compile.program import PATIENCE_NS
from .atomics import (
    add_half,
    cycles,
    futex_wait,
    load,
    load_acquire,
    load_half,
    now_ns,
    pause,
    sched_yield,
    signal_fence,
    store,
    store_half,
    store_release,
    syscall,
)
from .compiled import compiled

_FUTEX_WAKE, _EVERYBODY = 1, 0x7FFFFFFF
_COUNTER = 4
"""Bytes from the flag to the counter."""
_GLOBAL_EXPEDITED, _REGISTER_GLOBAL_EXPEDITED = 2, 4


@compiled
def wake(asleep):  # type: ignore[no-untyped-def]
    """Wake the ranks that sleep until this rank writes. A writer calls this after each store that ranks wait for."""
    signal_fence()
    if load_half(asleep) != 0:
        store_half(asleep, 0)
        add_half(asleep + _COUNTER, 1)
        syscall(FUTEX, asleep + _COUNTER, _FUTEX_WAKE, _EVERYBODY, 0, 0, 0)
    return 0


@compiled
def publish_and_wake(address, word, asleep):  # type: ignore[no-untyped-def]
    """Store a word, which publishes all earlier stores, and wake the ranks that sleep until then."""
    store_release(address, word)
    return wake(asleep)


@compiled
def announce(asleep):  # type: ignore[no-untyped-def]
    """Tell the writer that this rank is about to sleep. The rank must look again before that.

    Returns the ticket for `doze`, and whether the writer surely sees this.
    """
    ticket = load_half(asleep + _COUNTER)
    store_half(asleep, 1)
    return ticket, syscall(MEMBARRIER, _GLOBAL_EXPEDITED, 0, 0, 0, 0, 0) == 0


@compiled
def doze(asleep, ticket, limit_ns):  # type: ignore[no-untyped-def]
    """Sleep until the writer wakes this rank, but no longer than limit_ns. Signals end it, too."""
    futex_wait(FUTEX, asleep + _COUNTER, ticket, limit_ns)


@compiled
def register():  # type: ignore[no-untyped-def]
    """Let the fences of sleepers reach this process: 1; 0 where the system does not know or permit such fences."""
    return 1 if syscall(MEMBARRIER, _REGISTER_GLOBAL_EXPEDITED, 0, 0, 0, 0, 0) == 0 else 0


_UNFENCED_NS = 1_000_000
"""The longest sleep where the system refuses the fence: there a writer may miss a rank that is about to sleep."""
_SLICE = 400
"""A yield that is _SLICE times longer than a slow one has let a process run that computes."""
_SOON, _SLEEPING = 4, 50
"""If such a yield begins soon after another, before a quarter of the time that it takes, ranks that yield get less than
their share. Then they sleep and do not yield, for _SLEEPING times as long as it took.
"""


@compiled
def has_changed(address, goal, pairs, count):  # type: ignore[no-untyped-def]
    """Whether the word at `address` has reached its goal, or the two words of any pair differ."""
    if load_acquire(address) >= goal:
        return True
    for k in range(count):
        pair = pairs + 16 * k
        if load_acquire(load(pair)) != load_acquire(load(pair + 8)):
            return True
    return False


@compiled
def poll(pairs, count, ready):  # type: ignore[no-untyped-def]
    """Store at `ready` the indices of the pairs whose two words differ; return how many there are."""
    found = 0
    for k in range(count):
        pair = pairs + 16 * k
        if load_acquire(load(pair)) != load_acquire(load(pair + 8)):
            store(ready + 8 * found, k)
            found += 1
    return found


@compiled
def may_yield(slices):  # type: ignore[no-untyped-def]
    """Whether a rank that waits may yield; if not, it sleeps. slices: the address of what `give_way` has noted."""
    return cycles() >= load(slices + 8)


@compiled
def give_way(slow_yield, slices):  # type: ignore[no-untyped-def]
    """Yield the processor once. Returns the cycles that it took; less than 0: the rank must sleep from now on."""
    start = cycles()
    sched_yield()
    took = cycles() - start
    if took > _SLICE * slow_yield:
        soon = start - load(slices) < took // _SOON
        store(slices, start + took)
        if soon:
            store(slices + 8, start + (1 + _SLEEPING) * took)
            return -took
    return took


@compiled
def _yield(address, goal, pairs, count, most_spins, slow_yield, learned, limit_ns):  # type: ignore[no-untyped-def]
    """Yield until something has changed: -1; or until it is time to sleep: the nanoseconds that went by."""
    spins, turns, begin = load(learned), 0, 0
    while True:
        took = give_way(slow_yield, learned + 8)
        changed = has_changed(address, goal, pairs, count)
        if turns == 0 and most_spins > 0:
            if changed and slow_yield < took <= _SLICE * slow_yield:
                store(learned, max(8, spins >> 1))
            elif spins < most_spins:
                store(learned, min(most_spins, max(1, spins) * 2))
        if changed:
            return -1
        turns += 1
        if took < 0 or turns & 63 == 0:
            now = now_ns()
            if begin == 0:
                begin = now
            if took < 0 or now - begin > min(limit_ns, PATIENCE_NS):
                return now - begin


@compiled
def _sleep(address, goal, pairs, count, limit_ns, asleep):  # type: ignore[no-untyped-def]
    """Sleep until something has changed: 1; 0 after limit_ns. asleep: see `wait`."""
    changed, now = False, now_ns()
    begin = now
    while not changed and now - begin < limit_ns:
        ticket, is_seen = announce(asleep)
        changed = has_changed(address, goal, pairs, count)
        if not changed:
            rest_ns = limit_ns - (now - begin)
            doze(asleep, ticket, rest_ns if is_seen else min(rest_ns, _UNFENCED_NS))
            changed = has_changed(address, goal, pairs, count)
        now = now_ns()
    return 1 if changed else 0


@compiled
def wait(address, goal, pairs, count, most_spins, slow_yield, learned, waited_ns, limit_ns, asleep):  # type: ignore[no-untyped-def]
    """Wait until the word at `address` has reached its goal, or any pair differs: 1; 0 after limit_ns.

    pairs: the address of a table of `count` pairs of addresses.
    most_spins: 0 where ranks outnumber processors.
    slow_yield: see `slow_yield_cycles`.
    learned: the address of LEARNED_WORDS.
    waited_ns: how long the caller has waited before.
    asleep: the address of the word that tells the writers that this rank sleeps.

    The number of spins adapts. Where the first yield was slow and brought the change, the peer needed this very
    processor, and the next wait spins half as long; otherwise twice as long, up to most_spins.
    """
    if waited_ns <= PATIENCE_NS:
        for _ in range(load(learned)):
            if has_changed(address, goal, pairs, count):
                return 1
            pause()
        if may_yield(learned + 8):
            spent_ns = _yield(address, goal, pairs, count, most_spins, slow_yield, learned, limit_ns)
            if spent_ns < 0:
                return 1
            limit_ns -= spent_ns
    return _sleep(address, goal, pairs, count, limit_ns, asleep)


@compiled
def time_wakes(word):  # type: ignore[no-untyped-def]
    """Cycles of five system calls, one after the other, that wake threads that sleep at a word, at which none does.

    The fastest of 50 times. One such call may be too short for the counter: on some processors it counts at 25 MHz.
    """
    best = 1 << 60
    for _ in range(50):
        start = cycles()
        for _ in range(5):
            syscall(FUTEX, word, _FUTEX_WAKE, _EVERYBODY, 0, 0, 0)
        best = min(best, cycles() - start)
    return best


@compiled
def read_cycles():  # type: ignore[no-untyped-def]
    """The processor's cycle counter."""
    return cycles()
