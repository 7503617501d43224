"""Across hosts: a table's transfers as messages that a carrier moves, proved and run."""

from .lowering import lower
from .message_memory import Bytes, Room
from .message_program import MessageProgram
from .message_proof import prove_messages
from .tape_rows import BEGIN, Tags, TapeRow, TapeWriter
from .tape_run import TapeRun

__all__ = [
    "BEGIN",
    "Bytes",
    "MessageProgram",
    "Room",
    "Tags",
    "TapeRow",
    "TapeRun",
    "TapeWriter",
    "lower",
    "prove_messages",
]
