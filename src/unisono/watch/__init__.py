"""What a rank does while a call does not end: look at its peers, then wait on or raise."""

from .attend import attend, interrupted, odd_ones
from .frames import caller

__all__ = ["attend", "caller", "interrupted", "odd_ones"]
