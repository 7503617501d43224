"""Compression between hosts: sums inside a host are exact, what leaves it is rounded to bfloat16 or to blocks of int8.

    ddp_model.register_comm_hook(unisono.Compression("int8"), unisono.compress_hook)

For a vector, on n hosts with at least r ranks each: every host sums its ranks' vectors exactly, one r-th of it on each
of r ranks. Of each r-th, the ranks that have it, one per host, exchange pieces (`all_to_all`), rounded; each sums its
piece, and tells the others the sum (`all_gather`), rounded. All have the same bits, which the host's ranks then share.
So a link carries as many values as in an exact all_reduce, 2 (n-1)/n of the vector, in fewer bytes.

What is rounded away is not lost: each rank keeps it, and adds it to what it rounds at this place in the next call
(error feedback: Seide et al. 2014, "1-bit stochastic gradient descent"; in both stages: Tang et al. 2019,
"DoubleSqueeze").
"""

from .compressed import Compression
from .hook import compress_hook

__all__ = ["Compression", "compress_hook"]
