"""Local worlds: functions and scripts on several ranks of this host. The process that starts them needs no torch.

`docs/processes.md` draws the processes and what they send each other, and says what follows when one of them dies.
"""

from .worlds import World, run, world

__all__ = ["World", "run", "world"]
