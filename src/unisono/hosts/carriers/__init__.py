"""Carriers: transports of other projects that move bytes between two ranks. They do not know collectives."""
