"""Collectives that gradients flow through: each returns new tensors, and its backward is a collective again.

The gradients are those of the sum of all ranks' losses. So what gathers forward scatters backward:

    all_reduce (sum, avg)   all_reduce          all_gather   reduce_scatter (sum)
    broadcast               reduce (sum)        scatter      gather
    all_to_all              all_to_all          and each the other way round

product, min and max are made of a gather and the op of torch, so that zeros and ties have the gradients that they have
there. Backward can be differentiated again. Complex tensors work wherever the op has a meaning for them.

**The rule.** In grad mode the ranks tell each other, in one more small call, whether the input of any rank requires a
gradient. If so, the results do on all ranks, whatever a rank's own input says, and then *every rank runs backward
through every result*, in the same order, as one does by running the same code on every rank. Where a rank has no use
for a result (that of `reduce` on other ranks than `dst`), `join` makes its loss depend on it. Ranks that come to the
backward of different calls raise MismatchError; one that never comes is waited for until the group's timeout. The grad
mode must be the same on all ranks, or the calls differ, which is a MismatchError, too.

Names and arguments are those of torch.distributed.nn.functional, without its arguments for outputs.
"""

from .calls import (
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
from .join import join

__all__ = [
    "all_gather", "all_gather_single", "all_reduce", "all_to_all", "all_to_all_single", "broadcast", "gather", "join",
    "reduce", "reduce_scatter", "reduce_scatter_single", "scatter",
]  # fmt: skip
