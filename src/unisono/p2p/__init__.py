"""Point-to-point calls: torch's names and argument order, on CPU tensors of any dtype, shape and layout.

A message is a tensor with a tag, from one rank of a group to one other, or to itself. Those of one sender and one tag
are received in the order in which they were sent; a receive takes the first whose tag is exactly its own. Dtype and
number of elements must be the receiver's, or MessageMismatch tells it. These calls have no place in the order of the
group's collectives, and may be made by several threads.

A send is over when its tensor may change again, whether or not the message has been received: short messages wait in
shared memory, so a rank may end after its last send. Two ranks that both send first always go on: whoever waits takes
in what it is sent. A dead peer raises PeerGone, a late one WaitTimeout after `timeout_s` seconds (the group's default:
300). None of these ends the group, nor does Ctrl-C while a call waits: a receive that was given up leaves its message
to the next, and of a send that had begun the rest goes on in the background.
"""

from .batch import P2POp, batch_isend_irecv
from .calls import irecv, isend, recv, send, sendrecv
from .objects import recv_object_list, send_object_list
from .work import Transfer

__all__ = [
    "P2POp", "Transfer", "batch_isend_irecv", "irecv", "isend", "recv", "recv_object_list", "send", "send_object_list",
    "sendrecv",
]  # fmt: skip
