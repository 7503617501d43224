"""Wait for messages of a transport that moves them only while a thread calls it.

A call in which nothing moves is cheap. So a waiting rank first calls again and again, and sometimes yields. Then, and
at once where yields have given whole time slices to processes that compute, it sleeps until a descriptor says that the
transport has something to move. It sleeps for a short time, because other threads, and ranks of this host, write to
memory, too.
"""

from __future__ import annotations

from ..compile.program import TransportWord
from .atomics import call_transport, load_acquire, now_ns, sleep_on
from .compiled import compiled
from .move import get
from .waiting import give_way, has_changed, may_yield

_CALLS = 32
"""The rank yields its processor after _CALLS calls in which nothing moves."""
_PATIENCE_NS, _SHORTEST_NS, _LONGEST_NS = 50_000, 50_000, 1_000_000
"""A rank sleeps after _PATIENCE_NS in which nothing has moved; the shortest and the longest sleep."""
_REST_NS, _REST_SHARE = 50_000_000, 200
"""A rank that has waited for seconds sleeps longer: a part of its wait, at most _REST_NS. The transport wakes it."""


@compiled
def wait(address, goal, pairs, count, waited_ns, limit_ns, words):  # type: ignore[no-untyped-def]
    """Call the transport until the word at `address` has reached its goal, or any pair differs: 1; 0 after limit_ns.

    pairs: see `waiting.wait`.
    waited_ns: how long nothing has moved before.
    words: the address of the transport's words, see `TransportWord`.
    """
    return _wait(0, address, goal, pairs, count, waited_ns, limit_ns, words, 0, 0)


@compiled
def settle(request, waited_ns, limit_ns, words, news, seen):  # type: ignore[no-untyped-def]
    """Call the transport until a request is over, at most for limit_ns. Returns its status.

    news, seen: addresses of two words that are equal while there is no reason to return; 0: there is none.
    """
    _wait(request, 0, 0, 0, 0, waited_ns, limit_ns, words, news, seen)
    return call_transport(get(words, TransportWord.STATUS), request)


@compiled
def _is_over(request, address, goal, pairs, count, words):  # type: ignore[no-untyped-def]
    """Is the request over, or, if there is none (0), has memory changed?"""
    if request == 0:
        return has_changed(address, goal, pairs, count)
    return call_transport(get(words, TransportWord.STATUS), request) != get(words, TransportWord.UNDER_WAY)


@compiled
def _wait(request, address, goal, pairs, count, waited_ns, limit_ns, words, news, seen):  # type: ignore[no-untyped-def]
    begin = now_ns()
    quiet_since, looks = begin - waited_ns, 0
    slow_yield, slices = get(words, TransportWord.SLOW_YIELD_CYCLES), words + 8 * TransportWord.SLICES
    while True:
        moved = call_transport(get(words, TransportWord.PROGRESS), get(words, TransportWord.WORKER))
        if _is_over(request, address, goal, pairs, count, words):
            return 1
        looks += 1
        if moved == 0 and looks % _CALLS and limit_ns > 0:
            continue
        if news and load_acquire(news) != load_acquire(seen):
            return 0
        now = now_ns()
        if now - begin >= limit_ns:
            return 0
        if moved:
            quiet_since = now
        elif now - quiet_since < _PATIENCE_NS and may_yield(slices):
            give_way(slow_yield, slices)
        elif _may_sleep(words) and not _is_over(request, address, goal, pairs, count, words):
            _sleep(words, now - quiet_since, limit_ns)
            looks = -1  # if nothing has moved meanwhile, the rank sleeps again


@compiled
def _may_sleep(words):  # type: ignore[no-untyped-def]
    """Whether the transport has nothing to move, and its descriptor tells when it has. When this returns, memory has
    what other threads have moved.
    """
    return call_transport(get(words, TransportWord.ARM), get(words, TransportWord.WORKER)) == 0


@compiled
def _sleep(words, quiet_ns, limit_ns):  # type: ignore[no-untyped-def]
    longest = max(_LONGEST_NS, min(_REST_NS, quiet_ns // _REST_SHARE))
    sleep_on(get(words, TransportWord.DESCRIPTOR), min(limit_ns, longest, max(_SHORTEST_NS, quiet_ns // 16)))
