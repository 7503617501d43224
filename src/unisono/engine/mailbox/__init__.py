"""Messages between pairs of ranks. A send passes these files:

`mailbox` queues it on the `channel` to its receiver, which writes it into a `ring_buffer` in shared memory. There,
`poller` tells the receiver's mailbox that bytes have arrived, and `matching` finds the receive that they are for. To a
rank on another host it goes through a `far_channel` in `frames`, which a carrier moves; `streams` keeps these.
"""

from .mailbox import Mailbox
from .requests import ANY_SOURCE, MessageRequest, Receive, Send
from .streams import CarrierStreams, FarPeers

__all__ = ["ANY_SOURCE", "CarrierStreams", "FarPeers", "Mailbox", "MessageRequest", "Receive", "Send"]
