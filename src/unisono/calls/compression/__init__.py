"""Compression between hosts: sums inside a host are exact; values that leave it are rounded to bfloat16 or int8 blocks.

    ddp_model.register_comm_hook(unisono.Compression("int8"), unisono.compress_hook)

With n hosts of at least r ranks each, an all_reduce has four steps. First, every host sums its ranks' vectors exactly,
one r-th on each of r ranks. Second, the ranks with the same r-th, one per host, exchange rounded pieces (`all_to_all`).
Third, each sums its piece, and sends the rounded sum to the others (`all_gather`). Fourth, the ranks of each host share
the result. All ranks have the same bits. A link carries as many values as in an exact all_reduce, 2 (n-1)/n of the
vector, in fewer bytes.

Rounding errors are not lost: each rank keeps its error, and adds it to the values at the same place in the next call
(error feedback: Seide et al. 2014, "1-bit stochastic gradient descent"; in both stages: Tang et al. 2019,
"DoubleSqueeze").
"""

from .compressed import Compression, compress_hook

__all__ = ["Compression", "compress_hook"]
