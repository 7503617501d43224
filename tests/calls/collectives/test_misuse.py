"""Users' mistakes, such as a time that is none: one clear error on every rank, and the ranks stay together."""

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world
from unisono import ArgumentError
from unisono.base.errors import DTypeError


def f(count: int = 4) -> torch.Tensor:
    return torch.zeros(count)


@pytest.mark.ranks(2)
def test_columns_that_only_interleave_are_apart() -> None:
    me, matrix = unisono.get_rank(), torch.zeros(3, 2)
    unisono.all_gather([matrix[:, 0], matrix[:, 1]], matrix[:, me] + me + 1)
    unisono.all_reduce_coalesced([*matrix.unbind(1)])
    assert matrix.tolist() == [[2, 4]] * 3


@pytest.mark.ranks(3)
def test_lists_may_change_during_a_call() -> None:
    me, p, n = unisono.get_rank(), unisono.get_world_size(), 1_000_000
    blocks, others = ([f(n) for _ in range(p)] for _ in range(2))
    many, tensor = [torch.ones(n) for _ in range(3)], torch.ones(n)
    kept = [*blocks, *others, *many]
    for rank in range(1, p if me == 0 else 0):
        unisono.recv(src=rank)  # it has changed its lists before rank 0 takes part
    works: list[Any] = [
        unisono.all_gather(blocks, torch.full((n,), float(me)), async_op=True),
        unisono.all_to_all(others, [torch.full((n,), float(me))] * p, async_op=True),
        unisono.all_reduce_coalesced(many, async_op=True),
        unisono.all_reduce(tensor, async_op=True),
    ]
    for some in (blocks, others, many):
        some.clear()
    tensor.data = torch.empty(0)
    if me:
        unisono.send(torch.ones(1), 0)
    for work in works:
        work.wait()
    assert [one[n - 1].item() for one in kept] == [0, 1, 2, 0, 1, 2, 3, 3, 3]


@pytest.mark.ranks(2)
def test_times_may_be_timedeltas() -> None:
    for _ in range(3):  # also on the fast path
        unisono.all_reduce(f(), timeout_s=timedelta(seconds=20))
        unisono.all_gather_single(f(8), f(), timeout_s=timedelta(seconds=20))
    if unisono.get_rank() == 0:
        pending = unisono.all_reduce(f(), async_op=True)
        with pytest.raises(unisono.WaitTimeout):
            pending.wait(timedelta(milliseconds=10))
        unisono.send(f(), 1)
        pending.wait()
    else:
        unisono.recv(f(), 0)
        unisono.all_reduce(f())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@in_new_world(2, gives=["parent", "parent"])
def test_forked_child_does_not_answer() -> str:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        if unisono.get_rank():
            sys.exit(0)
        return "child"
    os.waitpid(child, 0)
    return "parent"


NONE = {
    "nan": (float("nan"), ArgumentError, ": got nan, expected "),
    "negative": (-0.5, ArgumentError, ": got -0.5, expected "),
    "text": ("x", DTypeError, ": got str, expected seconds or a timedelta"),
    "list": ([1.0], DTypeError, ": got list, expected seconds or a timedelta"),
    "truth": (True, DTypeError, ": got bool, expected seconds or a timedelta"),
    "negative timedelta": (timedelta(seconds=-2), ArgumentError, ": got -2, expected "),
}


def other() -> int:
    return 1 - unisono.get_rank()


ARGUMENTS: Mapping[str, Callable[[], list[Any]]] = {
    "all_reduce scan exscan": lambda: [f()],
    "reduce broadcast": lambda: [f(), 0],
    "scatter gather": lambda: [f(), None, other()],
    "all_gather": lambda: [None, f()],
    "all_gather_single": lambda: [f(8), f()],
    "reduce_scatter": lambda: [f(), [f(), f()]],
    "reduce_scatter_single": lambda: [f(), f(8)],
    "all_to_all": lambda: [[f(), f()], [f(), f()]],
    "all_to_all_single": lambda: [f(), f()],
    "all_reduce_coalesced": lambda: [[f(), f()]],
    "broadcast_coalesced": lambda: [[f(), f()], 0],
    "all_gather_coalesced": lambda: [[f(8)], [f()]],
    "reduce_scatter_coalesced": lambda: [[f()], [f(8)]],
    "all_gather_object": lambda: [[None, None], 1],
    "gather_object": lambda: [1, None, other()],
    "broadcast_object_list": lambda: [[1], 0],
    "scatter_object_list": lambda: [[None], None, other()],
    "send recv isend irecv": lambda: [f(), 1],
    "sendrecv": lambda: [f(), 1, f(), 1],
    "batch_isend_irecv": lambda: [[]],
    "send_object_list recv_object_list": lambda: [[1], 1],
    "new_group": lambda: [[0, 1]],
    "split": lambda: [0],
    "run": lambda: [f, 1],
    "World": lambda: [1],
    "barrier init Config": list,
}
CALLS = {name: arguments for names, arguments in ARGUMENTS.items() for name in names.split()}
"""Public names of calls that take a time-out, and arguments that are right."""

OTHERS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "Group.timeout_s": ("timeout_s", lambda s: setattr(unisono.init(), "timeout_s", s)),
    "Group.finish": ("timeout_s", lambda s: unisono.init().finish(s)),
    "Group.shrink": ("timeout_s", lambda s: unisono.init().shrink(timeout_s=s)),
    "World.timeout_s": ("timeout_s", lambda s: setattr(unisono.world(1), "timeout_s", s)),
    "Config.replace": ("look_up_s", lambda s: unisono.Config().replace(look_up_s=s)),
    "testing.chaos": (
        "duration_s",
        lambda s: unisono.testing.chaos(stop=0, at=("barrier", 1), duration_s=s).__enter__(),
    ),
}
"""What else takes a time -> the name of its argument, and a call with it."""


def refused(what: str, argument: str, call: Callable[[Any], Any]) -> None:
    for kind, (given, error, words) in NONE.items():
        with pytest.raises(error) as raised:
            call(given)
        assert f"{argument}{words}" in str(raised.value), (what, kind)


def test_table_has_every_call_with_a_time() -> None:
    public = [one for name in unisono.__all__ if callable(one := getattr(unisono, name))]
    calls = [one for one in public if not (inspect.isclass(one) and issubclass(one, Exception))]
    timed = {call.__name__ for call in calls if "timeout_s" in inspect.signature(call).parameters}
    assert timed | {"Config"} == CALLS.keys()


@pytest.mark.ranks(2)
def test_every_call_refuses_wrong_times() -> None:
    for what, given in CALLS.items():
        refused(what, "timeout_s", lambda s, what=what, given=given: getattr(unisono, what)(*given(), timeout_s=s))
    for what, (argument, call) in OTHERS.items():
        refused(what, argument, call)


@pytest.mark.ranks(2)
def test_works_refuse_wrong_times() -> None:
    me = unisono.get_rank()
    late = unisono.irecv(f(), 1 - me)
    refused("a receive", "timeout", late.wait)
    unisono.send(f(), 1 - me)
    assert late.wait(float("inf"))
    works = [late, unisono.isend(f(), me), unisono.all_reduce(f(), async_op=True)]
    for work in works:
        refused("a work", "timeout", work.wait)
        refused("a result", "timeout", work.result)
        assert work.wait(60)
        refused("a work that is done", "timeout", work.wait)
    assert unisono.recv(src=me).tolist() == f().tolist()
