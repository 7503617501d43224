"""Speed of collectives, and the goals that unisono has set itself.

session      contenders take turns           protocol    how one call is timed and checked
ranks        unisono, Gloo, memcpy           figures     percentiles, bandwidths, ratios
mpi_job      Open MPI, MPICH                 goals       goals against figures
extras       proofs, start-up                report      Markdown, JSON lines, time against size
"""
