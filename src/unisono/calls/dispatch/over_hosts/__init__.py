"""Calls over several hosts: what runs their plans, and calls that combine in rank order.

A call takes the road of a call on one host. Of its table (`schedule.algorithms.over_hosts`), `engine.compile` makes one
program for each rank; rows that cross hosts are SEND and RECV. `Group.run` is the `run` of a `Relay`, which calls the
kernel. If a wait takes long, the kernel returns as ever, and `ranks.failures.attend` looks at the ranks of all hosts.

A long vector goes in pieces: each piece of the table is a round behind the piece before, so that ranks combine one
while another one is under way.

The gate: a rank waits for the ranks of its host. Messages tell of the others; where the data alone does not tell that
all hosts have entered the call, a barrier of messages without bytes runs beside it. Only then is the user's output
written.

A tag has 41 bits of a hash of the group's number, the call's signature, and the numbers of segment and message. After a
mismatch, receives that no rank answers are cancelled.
"""

from __future__ import annotations

__all__ = []
