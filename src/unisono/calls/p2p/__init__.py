"""Point-to-point calls, with torch's names and argument order, for CPU tensors of any dtype, shape and layout.

A message is a tensor with a tag, from one rank of a group to another or to itself. A receive takes the first message
with exactly its tag; messages of one sender and one tag are received in the order in which they were sent. Dtype and
number of elements must be the same on both sides, otherwise the receiver raises MessageMismatch. These calls have no
place in the order of the group's collectives, and several threads may make them.

A send returns when its tensor may change again. This may be before the message is received: short messages wait in
shared memory, so that a rank may end after its last send. Two ranks that both send first always go on, because a rank
takes messages in while it waits. If a peer is dead, a call raises PeerGone. If it is late, WaitTimeout after
`timeout_s` seconds (the group's default: 300). If it has failed in a collective of the group, and refuses all calls,
PeerFailed. Neither these errors nor Ctrl-C in a waiting call end the group: the message of a cancelled receive goes to
the next receive, and a cancelled send that had begun goes on in the background. `group.abort()` ends all calls, and the
group.

A message between ranks of a host that have sent messages before takes a short way (`at_once`), if it need not wait for
long. Otherwise a call passes these files: `send_recv` (checks), `progress_engine` (waiting, and the thread for
`Transfer`, what `isend` and `irecv` return), `engine.mailbox` (the bytes).
"""

from .send_recv import P2POp, batch_isend_irecv, irecv, isend, recv, recv_object_list, send, send_object_list, sendrecv
from .transfer import Transfer

__all__ = [
    "P2POp", "Transfer", "batch_isend_irecv", "irecv", "isend", "recv", "recv_object_list", "send", "send_object_list",
    "sendrecv",
]  # fmt: skip
