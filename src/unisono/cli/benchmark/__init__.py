"""The measurements behind `unisono bench` and `unisono bench-torch`.

protocol     how one call is timed and checked        figures   percentiles, bandwidths, ratios
rendezvous   the barrier before each timed call       goals     the table of goals
contenders   ours, Gloo, memcpy, in one set of ranks  report    Markdown and JSON lines
mpi          Open MPI and MPICH, started as usual     plot      time against size
mpi_worker   what runs on each MPI rank               machine   what stands beside every figure
gloo         how Gloo is started                      extras    proofs, start-up
session      contenders taking turns           torch_groups   our backend and Gloo in the same ranks
torch_calls  calls of torch.distributed         torch_steps    training steps
torch_report their Markdown
"""

__all__ = []
