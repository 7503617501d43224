"""From a user's call to the kernel.

A call takes the plan of an earlier call (`shortcut`), or passes `Call` (checks), `Request` (the checked call),
`plan_step` (tensors to addresses), `make_plan` (algorithm, table, program, plan) and `drive` (the kernel). `background`
starts asynchronous calls, `blocks` handles blocks of several sizes, `rank_order` those calls over hosts that combine in
rank order.

A call of several steps, such as a coalesced call, plans each step with `plan_step` and hands the whole to `Call`. Calls
that differ at the gate only in sizes of blocks, or in lowerings, are made again in another way, see `retry_rules`.
"""

from .call import Call
from .checking import checking
from .plan_cache import UNKNOWN, CallKey
from .rank_order import plan_step
from .request import Request
from .retry_rules import makes_again
from .shortcut import shortcut
from .step import Action

__all__ = [
    "UNKNOWN",
    "Action",
    "Call",
    "CallKey",
    "Request",
    "checking",
    "makes_again",
    "plan_step",
    "shortcut",
]  # fmt: skip
