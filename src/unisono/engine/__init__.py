"""Tables to bytes: compile a table, prove the programs, run them over shared memory. Start reading at `plan`."""

from .host import warm_up

__all__ = ["warm_up"]
