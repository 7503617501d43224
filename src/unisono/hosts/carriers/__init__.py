"""Carriers: engines of others that move bytes between two ranks, and know nothing of collectives."""

from ...engine.carrier import Carrier, Handle, Lost

__all__ = ["Carrier", "Handle", "Lost"]
