"""One process per host that knows who lives on the others, and carries boards and control lines between them.

Nothing here imports torch or numpy: the process starts in a moment, and takes little memory. Start reading at
`hosts.sentinel.state_machine.SentinelState`, which decides without I/O; `main` is the loop around it, `start` starts
the process.
"""
