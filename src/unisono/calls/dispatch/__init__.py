"""From a user's call to the kernel.

A call takes the plan of an earlier call (`shortcut`), or passes `Call` (checks), `Request` (the checked call), `plan`
(tensors to addresses), `make_plan` (algorithm, table, program, plan) and `drive` (the kernel). `plan_blocks` is for
lists of blocks whose sizes ranks exchange first. A call of several steps, such as a coalesced call, plans each step
with `plan` and hands the whole to `Call`.
"""

from .blocks import Rows, plan_after, plan_blocks
from .checking import checking, refuse
from .known import UNKNOWN, shortcut
from .make import Call, copy, plan
from .request import Request, Tensors

__all__ = [
    "UNKNOWN", "Call", "Request", "Rows", "Tensors", "checking", "copy", "plan", "plan_after", "plan_blocks", "refuse",
    "shortcut",
]  # fmt: skip
