"""Calls over several hosts: their plan, its steps, and how they are run.

A call takes the road of a call on one host: `make_plan` keeps a `SpanPlan` in `Group.plans`, the fast paths find it,
and `Group.run` runs it on addresses. Here `Group.run` is the `run` of a `Relay`, and no kernel.

A call is one list of rows, a tape (`engine.tape`), made of the parts of a `HierarchicalTable`. A part inside a host is
a RUN, a program of the group of its ranks (`InsideProgram`). A part between hosts is rows of messages (`TapeWriter`).
`hosts_plan` follows each chunk from the user's input through scratch memory to the output, `hosts_steps` finds these
places in memory and puts the rows in order, and `hosts_run` makes the call. If a wait takes long, also of the kernel,
it returns an outcome, as a kernel does, and `ranks.failures.attend` looks at the ranks of all hosts. `RefusedCalls` has
the memory of calls that did not match.

All ranks have the same order of rows, by turns. A row waits only for rows of earlier turns, or for a RUN or a MEET of
its own turn, which the ranks of a host make in one order. So no circle of ranks waits. The first turn has all parts
before the messages and the first messages; then each round has a turn for what is sent and one for what is taken. A
long vector goes in pieces, and each piece is a round behind the piece before.

The gate across hosts, MEET, needs no messages of its own. A rank enters the call on its own control line, and waits for
the ranks of its host. The parts inside the host, into scratch memory, and the messages follow. The last message of each
table tells a rank that every host has entered the call; if the data alone does not tell this, a barrier of words runs
beside it. Only then is the user's output written. The last row, LEAVE, ends the call. A rank is compared with ranks of
other hosts once it has made the parts before the messages: a rank that raised before would be missing in them.

Messages of different calls never meet. The tags of long messages are made of the number and the signature of the call.
Short messages of one plan have the same tags again and again, and end with the number of the call. A mismatch leaves
messages that no rank takes. Their memory is kept until the carrier ends, and the group goes on; if too little memory is
left, the mismatch ends the group.

Messages may still travel to and from a lost host, so that no wait is long enough for a look. Therefore each call also
asks whether there is urgent news, such as a rank that has gone (`Span.must_look`), and so does each wait. If so, its
outcome names this rank itself.
"""

from __future__ import annotations

__all__ = []
