"""The calls: torch's names and argument order, on CPU tensors of any dtype and layout.

Every rank of the group makes the same calls in the same order. A call returns when this rank's tensors are ready; with
`async_op=True` it returns a `Work` at once. What ranks disagree about raises MismatchError on all of them, a dead peer
PeerGone, a late one WaitTimeout after `timeout_s` seconds (the group's default: 300). Wrong arguments raise
ArgumentError or DTypeError before anything moves, on the rank that passes them; the others raise MismatchError, which
says so. With one rank every call is a copy or nothing.

Sizes: in all_gather, gather, scatter, reduce_scatter and all_to_all the ranks' blocks may differ in size. A rank that
does not know the sizes passes None in place of its outputs, and the call returns new tensors (with `async_op`:
`Work.result()` does).

op: a name of `ReduceOp` such as "sum", torch.distributed.ReduceOp, `premul_sum(factor)`, or an op of your own made by
`make_op`. float16, bfloat16 and float8 are accumulated in float32; averages of integers are the exact sum (of 64-bit
integers modulo 2^64) divided towards zero. The ranks' values are combined in rank order, so results are bit-identical
on all ranks, and do not depend on the size of the message or on where in it an element lies.

algorithm: a name of the catalogue (`unisono list`), or a function of your own; None lets `choose` decide.
"""

from .all_gather import all_gather, all_gather_single
from .all_reduce import all_reduce
from .all_to_all import all_to_all, all_to_all_single
from .barrier import barrier
from .broadcast import broadcast
from .gather import gather
from .reduce import reduce
from .reduce_scatter import reduce_scatter, reduce_scatter_single
from .scan import exscan, scan
from .scatter import scatter

all_gather_into_tensor = all_gather_single
reduce_scatter_tensor = reduce_scatter_single

__all__ = [
    "all_gather", "all_gather_into_tensor", "all_gather_single", "all_reduce", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "exscan", "gather", "reduce", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_tensor", "scan", "scatter",
]  # fmt: skip
