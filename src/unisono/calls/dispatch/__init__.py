"""From a user's call to the kernel.

A call takes the plan of an earlier call (`shortcut`), or passes `Call` (checks), `Request` (the checked call),
`plan_step` (tensors to addresses), `make_plan` (algorithm, table, program, plan) and `drive` (the kernel). `background`
starts asynchronous calls. `blocks` makes calls on lists of blocks whose sizes ranks exchange first. `rank_order` makes
calls over hosts that combine in rank order.

A call of several steps, such as a coalesced call, plans each step with `plan_step` and hands the whole to `Call`.
"""

from .call import Call
from .checking import checking, refuse
from .known import UNKNOWN, CallKey, shortcut
from .rank_order import plan_step
from .request import Request, unequal
from .step import Action, CallOptions

__all__ = [
    "UNKNOWN",
    "Action",
    "Call",
    "CallKey",
    "CallOptions",
    "Request",
    "checking",
    "plan_step",
    "refuse",
    "shortcut",
    "unequal",
]  # fmt: skip
