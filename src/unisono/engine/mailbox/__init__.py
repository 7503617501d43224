"""Messages between pairs of ranks. A send passes these files:

`mailbox` queues it on the `channel` to its receiver, which writes it into a ring buffer in shared memory. There,
`poller` tells the receiver's mailbox that bytes have arrived, and the queues in `requests` find the receive that they
are for. To a rank on another host it goes through a `far_channel`, which a carrier moves; `far_ends` has both ends.

Each ordered pair of ranks on a host has a ring buffer of its own, which the first message makes in the sender's heap.
`poller` watches ring buffers and streams alike: a word in memory changes when bytes have arrived.
"""

from .far_channel import CarrierStreams
from .far_ends import FarPeers
from .mailbox import Mailbox, Place
from .requests import ANY_SOURCE, MessageRequest, Receive, Send

__all__ = [
    "ANY_SOURCE", "CarrierStreams", "FarPeers", "Mailbox", "MessageRequest", "Place", "Receive", "Send",
]  # fmt: skip
