"""Carriers: engines of other projects that move bytes between two ranks. They do not know collectives."""

from ...engine.carrier import Carrier, Handle, Lost

__all__ = ["Carrier", "Handle", "Lost"]
