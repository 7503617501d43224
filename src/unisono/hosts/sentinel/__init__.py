"""One process per host that knows which hosts and ranks live, and carries boards and control lines between hosts.

Nothing here imports torch or numpy: the process starts in a moment, and takes little memory. Start reading at
`hosts.sentinel.state_machine.SentinelState`, which decides without I/O; `main` is the loop around it, `start` starts
the process. A sentinel writes down what it must not forget (`estate`). If it is killed, its child goes on (`spare`). If
both are killed, a rank starts them again.
"""

__all__ = []

FIRST_S = 5.0
"""How long a sentinel may take to be heard for the first time, at least."""
BEAT_S = 0.25
"""The longest time between two beats, by which hosts tell each other that they live."""
MOST_BYTES_LOCAL = 1 << 17
"""The most bytes of a message between a rank and its sentinel."""
