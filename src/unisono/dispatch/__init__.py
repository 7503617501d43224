"""From a checked call to the kernel: the group, the algorithm, the plan, and the run, at once or in the background."""

from .combine import combine, premultiplied, whole_tensors
from .entering import entering, refuse
from .exchange import Exchange, exchange
from .fast import finish_plan, known_plan, run_known, run_plan
from .perform import default_group, perform
from .request import Request

__all__ = [
    "Exchange", "Request", "combine", "default_group", "entering", "exchange", "finish_plan", "known_plan", "perform",
    "premultiplied", "refuse", "run_known", "run_plan", "whole_tensors",
]  # fmt: skip
