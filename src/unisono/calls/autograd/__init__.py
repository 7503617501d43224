"""Differentiable collectives. Each returns new tensors, and its backward makes the transposed collective.

The gradients are gradients of the sum of all ranks' losses:

    forward                 backward            forward      backward

    all_reduce (sum, avg)   all_reduce          all_gather   reduce_scatter (sum)
    broadcast               reduce (sum)        scatter      gather
    all_to_all              all_to_all          and the reverse of each

product, min and max gather the tensors and combine them with torch's op, so zeros and ties get torch's gradients.
Backward can be differentiated again. Complex tensors work for every op that is defined for them.

The rule: every rank runs backward through every result, in the same order.

- In grad mode, ranks first tell each other whether their inputs require a gradient. If one does, the results require a
  gradient on all ranks.
- A rank that does not use a result (such as `reduce` on other ranks than `dst`) ties it into its loss with `join`.
- Ranks that run backward of different calls raise MismatchError. A rank that runs none makes the others wait until the
  group's timeout.
- All ranks must have the same grad mode; otherwise their calls differ, and they raise MismatchError.

Names and arguments are as in torch.distributed.nn.functional, without its output arguments.
"""

from .differentiable import (
    all_gather,
    all_gather_single,
    all_reduce,
    all_to_all,
    all_to_all_single,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    scatter,
)
from .linear import join

__all__ = [
    "all_gather", "all_gather_single", "all_reduce", "all_to_all", "all_to_all_single", "broadcast", "gather", "join",
    "reduce", "reduce_scatter", "reduce_scatter_single", "scatter",
]  # fmt: skip
