"""Across hosts: a table's transfers as messages that a carrier moves, proved and run."""

from .exchange import Exchange, Journal
from .lowering import lower
from .message_memory import Bytes, Room
from .message_program import MessageProgram
from .message_proof import prove_messages
from .persistent_receives import ReceiveBuffers
from .wait import RESTS_S, MessageWait, nap, until

__all__ = [
    "RESTS_S",
    "Bytes",
    "Exchange",
    "Journal",
    "MessageProgram",
    "MessageWait",
    "ReceiveBuffers",
    "Room",
    "lower",
    "nap",
    "prove_messages",
    "until",
]
