"""Across hosts: a table's transfers as messages that a carrier moves, proved and run."""

from .exchange import Exchange
from .journal import Journal, journal_rows
from .lowering import hears_all, lower
from .message_program import MessageProgram
from .message_proof import prove_messages
from .persistent_receives import ReceiveBuffers
from .wait import RESTS_S, MessageWait, nap, until

__all__ = [
    "RESTS_S",
    "Exchange",
    "Journal",
    "MessageProgram",
    "MessageWait",
    "ReceiveBuffers",
    "hears_all",
    "journal_rows",
    "lower",
    "nap",
    "prove_messages",
    "until",
]
