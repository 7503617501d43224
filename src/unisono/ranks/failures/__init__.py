"""What a rank does while a call does not end: it looks at its peers, then waits on or raises.

`attend` looks at every peer each time the kernel returns: has its process died (`rank_liveness`), has it left, given
the call up, or made another call? `judge` in `verdict` decides. The error names rank, call and line. `stall` warns of
calls that take long, and says what the missing rank does (`sight`). `abort` ends waits from outside.
"""
