"""What a rank does while a call does not end: it looks at its peers, then waits on or raises.

Each time the kernel returns unfinished, `attend` looks at every peer. The process of a peer may have died
(`group.rank_liveness`). The peer may have left the group, given the call up, or made another call. `judge` in `verdict`
decides whether this rank waits on. An error names rank, call and line. `stall` warns of calls that take long, and says
what the missing rank does (`sight`).

A rank that waits or fails imports nothing: it may have no file descriptor left.
"""
