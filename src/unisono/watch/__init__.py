"""What a rank does while a call does not end: look at its peers, then wait on or raise."""

from .abort import aborted, check_abort, give_up
from .attend import attend, caller, interrupted, odd_ones

__all__ = ["aborted", "attend", "caller", "check_abort", "give_up", "interrupted", "odd_ones"]
