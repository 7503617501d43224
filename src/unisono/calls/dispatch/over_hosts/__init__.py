"""Calls over several hosts: what runs their plans.

`Group.run` is the `run` of a `Relay`, which calls the kernel. A long vector goes in pieces: each piece of the table is
a round behind the piece before, so that ranks combine one while another one is under way.

The gate: a rank waits for the ranks of its host. Messages tell of the others; where the data alone does not tell that
all hosts have entered the call, a barrier of messages without bytes runs beside it. Only then is the user's output
written.

A tag has 41 bits of a hash of the group's number, the call's signature, and the numbers of segment and message. After a
mismatch, receives that no rank answers are cancelled.
"""
