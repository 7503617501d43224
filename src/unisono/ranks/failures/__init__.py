"""What a rank does while a call does not end: look at its peers, then wait on or raise; who is still there.

`attend` looks at every peer each time the kernel returns: has its process died (`rank_liveness`), has it left, given
the call up, or made another call? `judge` in `verdict` decides. The error names rank, call and line. `stall` warns of
calls that take long, with what `sight` sees of the rank they wait for; `abort` ends waits from outside.
"""
