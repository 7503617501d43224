"""The collectives: torch's names and argument order, on CPU tensors of any dtype and layout.

Every rank of the group makes the same calls in the same order. A call returns when this rank's tensors are ready; with
`async_op=True` it returns a `Work` at once. If ranks make different calls, all raise MismatchError. If a peer is dead,
a call raises PeerGone; if a peer is late, WaitTimeout after `timeout_s` seconds (default: the group's, 300). Wrong
arguments raise ArgumentError or DTypeError on the rank that passes them, before anything moves, and MismatchError on
the others.

Sizes: in all_gather, gather, scatter, reduce_scatter and all_to_all the ranks' blocks may differ in size. If
ranks do not know the sizes, `all_gather(None, tensor)` gathers them first, and returns new tensors.

op: a name of `ReduceOp` such as "sum", torch.distributed.ReduceOp, `premul_sum(factor)`, or an op made by `make_op`.
float16, bfloat16 and float8 are accumulated in float32. The average of integers is their exact sum, divided and
truncated towards zero. Values are combined in rank order, so results are bit-identical on all ranks, and do not depend
on the size of the message or on an element's place in it.

algorithm: a name of the catalogue (`unisono explain`) or a function of your own; None: `choose` decides.
"""

from importlib import import_module
from typing import Any

from torch import Tensor

from ...ranks.group.group import Group
from ..dispatch import CallKey, makes_again

_SINGLE = "all_to_all", "reduce_scatter"  # collectives with another function for one tensor, which is cut into blocks


@makes_again
def _again(group: Group, what: CallKey, inp: Any, out: Any, timeout_s: float | None) -> None:
    """Make a call in full after it has begun on a fast path in the background."""
    kind, op, root, algorithm = what
    arguments: dict[str, tuple[Any, ...]] = {
        "all_gather": (out, inp),
        "all_reduce": (out, op),
        "all_to_all": (out, inp),
        "broadcast": (out, root),
        "exscan": (out, op),
        "gather": (inp, out, root),
        "reduce": (out, root, op),
        "reduce_scatter": (out, inp, op),
        "scan": (out, op),
        "scatter": (out, inp, root),
    }
    module = import_module(f".{kind.removeprefix('ex')}", __name__)
    call = getattr(module, f"{kind}_single" if kind in _SINGLE and isinstance(inp, Tensor) else kind)
    call(*arguments[kind], group=group, algorithm=algorithm, timeout_s=timeout_s)
