"""From a user's call to the kernel.

A call takes the plan of an earlier call (`shortcut`, `list_shortcut`), or passes `Call` (checks), `Request` (the
checked call), `plan_step` (tensors to addresses), `make_plan` (algorithm, table, program, plan) and `run_plan` (the
kernel). `background` starts asynchronous calls, `blocks` handles blocks of several sizes, `fold` ops on whole tensors.
"""

from .anywhere import plan_step
from .call import Call
from .checking import checking, refuse
from .known import UNKNOWN, What
from .learn import makes_again
from .lists import list_shortcut
from .request import Request
from .shortcut import run_plan, shortcut
from .step import Action, How

__all__ = [
    "UNKNOWN", "Action", "Call", "How", "Request", "What", "checking", "list_shortcut", "makes_again", "plan_step",
    "refuse", "run_plan", "shortcut",
]  # fmt: skip
