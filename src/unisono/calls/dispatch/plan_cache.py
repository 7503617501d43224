"""The plans of earlier calls, kept for the fast paths. Their keys are made of unchecked calls."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...engine.compile.plan import CallPlan
from ...engine.compile.program import EntryWord, KnownWord
from ...engine.host import interpreter
from ...engine.kernels import kernel
from ...engine.tensors import EXPORTER, ONLY_BITS
from ...ranks.group.group import Group
from ..arguments import blank
from .request import Request, Tensors, is_one

CallKey = tuple[str, Any, int, Any]
"""The call as the user makes it: collective, op, root and algorithm."""

UNKNOWN: Any = type("Unknown", (), {"__doc__": "What a fast path returns for a call that must be checked."})()

_OWN_BLOCK = "all_gather", "reduce_scatter"
"""The collectives in which the smaller tensor may be this rank's block of the larger one."""
_AMBIGUOUS = {torch.int8, torch.uint8, *ONLY_BITS}
"""Dtypes that DLPack does not tell apart."""
_KERNELS = "known.call", "known.find", "known.enter"
_KEY = EntryWord.PLAN  # words of a key


class KnownCalls:
    """The plans of calls of one kind, which differ in their tensors only.

    plans: address -> plan, and its request without tensors.
    table: the address of the same plans by the keys of their tensors, for `call` and `find` of kernels/known.
    run: the kernel that `call` runs.
    """

    def __init__(self, group: Group, collective: str) -> None:
        self._header = group.heap_first, group.heap_end, group.rank if collective in _OWN_BLOCK else -1
        self.plans: dict[int, tuple[CallPlan, Request]] = {}
        self._entries: dict[tuple[int, ...], tuple[int, int]] = {}  # key -> address of the plan, and TO_CHECK
        self._tables: list[array[int]] = []  # another thread may still read an old one
        self.run, self.call, self.find, self._enter = interpreter(), *map(kernel, _KERNELS)
        self._make_table(8)

    def _make_table(self, size: int) -> None:
        table = array("q", bytes(8 * (KnownWord.WORDS + EntryWord.WORDS * size)))
        table[: KnownWord.WORDS] = array("q", [*self._header, size - 1])
        address, _ = table.buffer_info()
        for key, (plan, to_check) in list(self._entries.items()):
            self._enter(address, *key, plan, to_check)
        self._tables.append(table)
        self.table, self._most = address, size // 2

    def add(self, plan: CallPlan, request: Request) -> None:
        """Keep the plan, if the table can have such tensors."""
        inp, out = request.inp, request.out
        words, tensors = array("q", bytes(8 * _KEY)), () if inp is None else (inp,) if out is inp else (inp, out)
        if self.find(self.table, words.buffer_info()[0], EXPORTER, *tensors) < 0:
            return
        like = blank(request.like.numel(), request.like.dtype)
        key, to_check = tuple(words), int(inp is not None and like.dtype in _AMBIGUOUS)
        self.plans[plan.address] = plan, request._replace(like=like, inp=None, out=None)
        self._entries[key] = plan.address, to_check
        if len(self._entries) > self._most:
            self._make_table(4 * self._most)
        self._enter(self.table, *key, plan.address, to_check)


def keep(group: Group, plan: CallPlan, what: CallKey, request: Request) -> None:
    """Keep the plan for the fast paths, if they know such tensors."""
    if group.host.config.debug:  # the fast paths print no debug line
        return
    inp, out = request.inp, request.out
    if what[0] == "barrier" or (is_one(inp) and is_one(out) and not inp.is_complex()):  # it may be conjugate
        known = group.shortcuts.get(what) or group.shortcuts.setdefault(what, KnownCalls(group, what[0]))
        known.add(plan, request)


def as_list(tensors: Tensors) -> Sequence[torch.Tensor]:
    if tensors is None:
        return ()
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def drop_shortcuts(group: Group, which: Callable[[CallPlan], bool]) -> None:
    for key, calls in list(group.shortcuts.items()):
        if any(which(plan) for plan, _ in list(calls.plans.values())):
            group.shortcuts.pop(key, None)


def forget_plans(group: Group) -> None:
    """Drop all plans of the group: the next calls are planned anew."""
    group.plans.clear()
    drop_shortcuts(group, lambda _: True)


def in_heap(group: Group, tensor: torch.Tensor) -> bool:
    """Does the tensor lie in this rank's heap?"""
    return group.heap_first <= tensor.data_ptr() < group.heap_end
