"""One process per host that knows which hosts and ranks live, and carries boards and control lines between hosts.

Nothing here imports torch or numpy: the process starts in a moment, and takes little memory. Start reading at
`hosts.sentinel.state_machine.SentinelState`, which decides without I/O; `main` is the loop around it, `start` starts
the process.
"""
