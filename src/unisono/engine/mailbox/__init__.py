"""Messages between two ranks: rings in shared memory, and the mailbox in which a rank's sends and receives meet."""

from .mailbox import Mailbox
from .requests import ANY, Receive, Request, Send

__all__ = ["ANY", "Mailbox", "Receive", "Request", "Send"]
