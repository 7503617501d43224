"""The loop that plays rounds, on arrays: plain Python, which Numba compiles when it is first called."""

from __future__ import annotations

from typing import Any

SINCE, UNTIL, WORK, LOAD, COUNT, TOTAL, FIRST, LAST = range(8)
COLUMNS = 8
"""Of a link: begin and end of what it was last used for, the work in that time; in this round: the work, the number of
messages, the sum of their begins, the first begin, the end of all. Together they are as long as a line of a cache.
"""


def play_rounds(times: int, sent: Any, ways: Any, costs: Any, ranks: Any, links: Any, busy: Any, room: Any) -> None:
    """Play rounds so many times.

    sent: starts, src, dst, share, added. ways: for each message, does it go far, its latency, and a row with its links
    (0: none); one that does not go far has the first of them only. costs: bytes of the vector that share and added are
    fractions of, the longest message that does not wait for its receiver, seconds that each message of a rank for other
    hosts waits for the one before it, and seconds per byte combined.
    ranks: when each is ready, and how much of that is latency, transfers, sums. links: the columns of each are the
    numbers below, of which the last five are scratch; busy: seconds per byte, and the work of all. room: scratch for
    messages and ranks. Scratch is of zeros, and left so; where 0 would mean something, 1 is added.
    """
    starts, src, dst, share, added = sent
    far, latency, route = ways
    nbytes, eager, message_s, combine_s = costs
    ready, parts = ranks
    of_message, of_rank, of_parts = room
    go, out, by = of_message
    came, sums, then = of_rank
    width = route.shape[1]
    for number in range(times * (len(starts) - 1)):
        begin = starts[number % (len(starts) - 1)]
        end = starts[number % (len(starts) - 1) + 1]
        # How much there is on each link, and from when on.
        for m in range(begin, end):
            a, b, i = src[m], dst[m], m - begin
            if m == begin or a != src[m - 1]:
                waits = 0.0
            go[i] = ready[a] + (waits if far[m] else latency[m])
            if far[m]:
                waits += message_s
            by[i] = a
            if ready[b] > go[i] and (not far[m] or share[m] * nbytes > eager):
                go[i] = ready[b]
                by[i] = b
            for h in range(width if far[m] else 1):
                k = route[m, h]
                if k > 0:
                    own = share[m] * nbytes * busy[k, 0]
                    free = min(links[k, UNTIL], links[k, SINCE] + links[k, WORK])
                    # A message of a later round may pass before one of an earlier round that comes late.
                    start = free if go[i] < free and go[i] + own > links[k, SINCE] else go[i]
                    links[k, LOAD] += own
                    links[k, COUNT] += 1.0
                    links[k, TOTAL] += start
                    links[k, LAST] = max(links[k, LAST], start) + own
                    if links[k, FIRST] == 0.0 or start + 1.0 < links[k, FIRST]:
                        links[k, FIRST] = start + 1.0
        # When each message has left, and what comes to each rank.
        for m in range(begin, end):
            b, i = dst[m], m - begin
            out[i] = go[i]
            for h in range(width if far[m] else 1):
                k = route[m, h]
                if k > 0:
                    own = share[m] * nbytes * busy[k, 0]
                    free = min(links[k, UNTIL], links[k, SINCE] + links[k, WORK])
                    start = free if go[i] < free and go[i] + own > links[k, SINCE] else go[i]
                    # Of two messages that share a link, each is alone on it while the other is not there.
                    took = max(links[k, LOAD] - abs(links[k, COUNT] * start - links[k, TOTAL]), own)
                    out[i] = max(out[i], min(start + took, links[k, LAST]))
            sums[b] += added[m] * nbytes * combine_s
            at = max(out[i] + (latency[m] if far[m] else 0.0), ready[b]) + 1.0
            if came[b] == 0.0 or at < came[b]:
                came[b] = at
        # When each rank has all that comes, has combined it, and has sent all that goes far.
        for m in range(begin, end):
            a, b, i = src[m], dst[m], m - begin
            starter = int(by[i])
            at = out[i] + (latency[m] if far[m] else 0.0)
            own = added[m] * nbytes * combine_s
            done = max(max(at, ready[b]) + own, came[b] - 1.0 + sums[b])
            if done > then[b]:
                then[b] = done
                origin = b if ready[b] > at else starter
                wait = 0.0 if ready[b] > at else go[i] - ready[starter] + at - out[i]
                moves = 0.0 if ready[b] > at else out[i] - go[i]
                of_parts[b, 0] = parts[origin, 0] + wait
                of_parts[b, 1] = parts[origin, 1] + moves
                of_parts[b, 2] = parts[origin, 2] + done - max(at, ready[b])
            if far[m] and out[i] > then[a]:
                then[a] = out[i]
                of_parts[a, 0] = parts[starter, 0] + go[i] - ready[starter]
                of_parts[a, 1] = parts[starter, 1] + out[i] - go[i]
                of_parts[a, 2] = parts[starter, 2]
        for m in range(begin, end):
            for k in (src[m], dst[m]):
                if then[k] > ready[k]:
                    ready[k] = then[k]
                    parts[k] = of_parts[k]
                came[k] = 0.0
                sums[k] = 0.0
                then[k] = 0.0
            for h in range(width if far[m] else 1):
                k = route[m, h]
                if k > 0 and links[k, COUNT] > 0.0:
                    links[k, WORK] = (
                        max(links[k, WORK] - max(links[k, FIRST] - 1.0 - links[k, SINCE], 0.0), 0.0) + links[k, LOAD]
                    )
                    busy[k, 1] += links[k, LOAD]
                    links[k, SINCE] = links[k, FIRST] - 1.0
                    links[k, UNTIL] = max(links[k, UNTIL], links[k, LAST])
                    links[k, LOAD] = 0.0
                    links[k, COUNT] = 0.0
                    links[k, TOTAL] = 0.0
                    links[k, FIRST] = 0.0
                    links[k, LAST] = 0.0
