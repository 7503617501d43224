"""The collectives: torch's names and argument order, on CPU tensors of any dtype and layout.

Every rank of the group makes the same calls in the same order. A call returns when this rank's tensors are ready; with
`async_op=True` it returns a `Work` at once. If ranks make different calls, all raise MismatchError. If a peer is dead,
a call raises PeerGone; if a peer is late, WaitTimeout after `timeout_s` seconds (default: the group's, 300). Wrong
arguments raise ArgumentError or DTypeError on the rank that passes them, before anything moves, and MismatchError on
the others.

Sizes: in all_gather, gather, scatter, reduce_scatter and all_to_all the ranks' blocks may differ in size. A rank that
does not know the sizes passes None for its outputs; the call, or `Work.result()`, then returns new tensors.

op: a name of `ReduceOp` such as "sum", torch.distributed.ReduceOp, `premul_sum(factor)`, or an op made by `make_op`.
float16, bfloat16 and float8 are accumulated in float32. The average of integers is their exact sum, divided and
truncated towards zero. Values are combined in rank order, so results are bit-identical on all ranks, and do not depend
on the size of the message or on an element's place in it.

algorithm: a name of the catalogue (`unisono list`) or a function of your own; None: `choose` decides.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...ranks.group.group import Group
from ..dispatch import CallKey, makes_again
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


@makes_again
def _again(group: Group, what: CallKey, inp: Any, out: Any, timeout_s: float | None) -> None:
    """Make a call in full after it has begun on a fast path in the background."""
    kind, op, root, algorithm = what
    single = isinstance(inp, Tensor)
    calls: dict[str, tuple[Any, ...]] = {
        "all_gather": (all_gather, out, inp),
        "all_reduce": (all_reduce, out, op),
        "all_to_all": (all_to_all_single if single else all_to_all, out, inp),
        "broadcast": (broadcast, out, root),
        "exscan": (exscan, out, op),
        "gather": (gather, inp, out, root),
        "reduce": (reduce, out, root, op),
        "reduce_scatter": (reduce_scatter_single if single else reduce_scatter, out, inp, op),
        "scan": (scan, out, op),
        "scatter": (scatter, out, inp, root),
    }
    call, *arguments = calls[kind]
    call(*arguments, group=group, algorithm=algorithm, timeout_s=timeout_s)
