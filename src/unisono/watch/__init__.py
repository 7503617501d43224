"""Never hangs, never lies: what a rank does when a call does not simply end."""

from .attend import attend, caller, interrupted, odd_ones

__all__ = ["attend", "caller", "interrupted", "odd_ones"]
