"""What a rank does while a call does not end: look at its peers, then wait on or raise."""

from .attend import attend, caller, interrupted, odd_ones

__all__ = ["attend", "caller", "interrupted", "odd_ones"]
