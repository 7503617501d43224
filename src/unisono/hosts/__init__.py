"""Between hosts: carriers move bytes, a sentinel per host knows the others.

A group with ranks on several hosts has a `Span`. Each host has an arena of its own, with places for all ranks of the
world. The sentinel of a host copies control lines and boards of ranks on other hosts there, when a rank asks for them
or a peer has news. So `judge`, the agreement on a smaller group, and errors are the same as on one host. A rank judges
ranks of other hosts only by copies that it has asked for after its wait began.

The kernel does not know hosts, and groups on one host do not use this room.
"""

from collections.abc import Callable

AT_END: list[Callable[[], None]] = []
"""What a process does at its end, when its groups are closed. A module of this room adds what it needs."""
