"""What a rank does while a call does not end: look at its peers, then wait on or raise."""

from .abort import aborted, check_abort, check_given_up, give_up
from .attend import Gated, Watch, attend, caller, interrupted, odd_ones

__all__ = [
    "Gated", "Watch", "aborted", "attend", "caller", "check_abort", "check_given_up", "give_up", "interrupted",
    "odd_ones",
]  # fmt: skip
