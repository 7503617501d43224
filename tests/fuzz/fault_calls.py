"""A call of a scene on one rank, made and judged as the fuzzer of programs does."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import unisono
from tests.fuzz.api import Native
from tests.fuzz.fault_scene import MESSAGES, Call
from tests.fuzz.messages import send_and_receive
from tests.fuzz.programs import Messages
from tests.support.matrix import REDUCING, Case
from tests.support.matrix_driver import IN_PLACE, begin, wanted


def prepare(
    call: Call, number: int, group: unisono.Group, changed: Callable[[], None], keep_inputs: bool
) -> Callable[[], str]:
    """Returns what makes the call and says what is wrong, or nothing. number: of the call, for its values and root.

    changed: called if the call fails and its input is not what it was. keep_inputs: also if it is the output, too.
    """
    how: Any = {"shared": call.shared, "seed": number}
    if call.name in MESSAGES:
        step = Messages({"ring": "sendrecv"}.get(call.name, call.name), "int64", call.count, 0, **how)
        return lambda: send_and_receive(step, Native(), group)()
    form = f"{call.name}_single" if call.name in ("all_gather", "reduce_scatter", "all_to_all") else call.name
    op = "sum" if form in REDUCING else "-"
    case = Case(form, "int64", op, call.count, async_op=call.background, root=number, **how)

    def make(arguments: list[Any]) -> Any:
        mine = arguments[form.endswith("_single")] if arguments else torch.zeros(0)
        before = mine.clone()
        try:
            work = getattr(unisono, form)(*arguments, group=group, async_op=call.background)
            if work is not None:
                work.wait()
        except (unisono.PeerError, unisono.WaitTimeout, unisono.MismatchError):
            if (keep_inputs or form not in IN_PLACE) and not torch.equal(mine, before):
                changed()
            raise
        return work

    def barrier() -> str:
        make([])
        return ""

    if form == "barrier":
        return barrier
    wanted(replace(case, shared=False, async_op=False), group.size)  # it takes long: not while faults are due
    return lambda: begin(case, group.rank, group.size, make)()
