"""Across hosts: a table's transfers as messages that a carrier moves, proved and run."""

from .clocks import hears_all
from .exchange import Exchange
from .journal import Journal, journal_rows
from .landing import Landings, Standing
from .lowering import lower
from .program import MessageProgram
from .proof import prove_messages
from .wait import nap

__all__ = [
    "Exchange",
    "Journal",
    "Landings",
    "MessageProgram",
    "Standing",
    "hears_all",
    "journal_rows",
    "lower",
    "nap",
    "prove_messages",
]
