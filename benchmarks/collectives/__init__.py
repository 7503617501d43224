"""Speed of collectives, and the goals that unisono has set itself.

session      contenders take turns           protocol    how one call is timed and checked
ranks        unisono, Gloo, memcpy           figures     percentiles, bandwidths, ratios
mpi_job      Open MPI, MPICH                 goals       goals against figures
mpi_worker   what each MPI rank runs         report      Markdown and JSON lines
extras       proofs, start-up                plot        time against size
"""

__all__: list[str] = []
