"""A call that has begun on a fast path in the background, made again in full."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...ranks.group.group import Group
from ..dispatch import CallKey, makes_again
from .all_gather import all_gather
from .all_reduce import all_reduce
from .all_to_all import all_to_all, all_to_all_single
from .broadcast import broadcast
from .gather import gather
from .reduce import reduce
from .reduce_scatter import reduce_scatter, reduce_scatter_single
from .scan import exscan, scan
from .scatter import scatter


@makes_again
def _again(group: Group, what: CallKey, inp: Any, out: Any, timeout_s: float | None) -> None:
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
