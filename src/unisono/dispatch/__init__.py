"""From a user's call to the kernel. The road, in order: `shortcut` (an earlier call's plan) or else `Call` (checks),
`Request` (the checked call), `plan_step` (tensors to addresses), `make_plan` (algorithm, table, program, plan) and
`run_plan` (the kernel). Beside it: `blocks` of several sizes, ops that `fold` whole tensors."""

from .call import Call
from .checking import checking, refuse
from .request import Request
from .shortcut import run_plan, shortcut
from .step import Action, How, plan_step

__all__ = ["Action", "Call", "How", "Request", "checking", "plan_step", "refuse", "run_plan", "shortcut"]
