"""The plans of earlier calls, kept for the fast paths. Their keys are made of unchecked calls."""

from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch._C._dynamo import guards

from ...engine.compile.plan import CallPlan
from ...engine.compile.program import EntryWord, KnownWord
from ...engine.host import interpreter
from ...engine.kernels import kernel
from ...engine.tensors import EXPORTER, ONLY_BITS, is_plain
from ...ranks.group.group import Group
from .request import Tensors, is_one

CallKey = tuple[str, Any, int, Any]
"""The call as the user makes it: collective, op, root and algorithm."""

ListKey = tuple[CallKey, int, int]
"""The key of a shortcut of calls on lists: the call, the lengths of input and output; -1: one tensor; 0: none."""

UNKNOWN: Any = type("Unknown", (), {"__doc__": "What a fast path returns for a call that must be checked."})()

_OWN_BLOCK = "all_gather", "reduce_scatter"
"""The collectives in which the smaller tensor may be this rank's block of the larger one."""
_AMBIGUOUS = {torch.int8, torch.uint8, *ONLY_BITS}
"""Dtypes that DLPack does not tell apart."""
_KERNELS = "known.call", "known.find", "known.enter"
_KEY = EntryWord.PLAN  # words of a key

_EVEN_AGAIN = 16  # the calls with blocks of one size after which a collective stops exchanging sizes at once
_MOST_LISTS = 4  # the most plans that are kept for one ListKey


def fits(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A function, torch.compile's, that tells whether others have the dtypes, shapes, strides and kinds of these."""
    check: Callable[..., bool] = guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


class KnownCalls:
    """The plans of calls of one kind, which differ in their tensors only.

    plans: address -> plan, and the dtype of its tensors.
    table: the address of the same plans by the keys of their tensors, for `call` and `find` of kernels/known.
    run: the kernel that `call` runs.
    """

    def __init__(self, group: Group, collective: str) -> None:
        self._header = group.heap_first, group.heap_end, group.rank if collective in _OWN_BLOCK else -1
        self.plans: dict[int, tuple[CallPlan, torch.dtype | None]] = {}
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

    def add(self, plan: CallPlan, inp: Any, out: Any) -> None:
        """Keep the plan, if the table can have such tensors."""
        words, tensors = array("q", bytes(8 * _KEY)), () if inp is None else (inp,) if out is inp else (inp, out)
        if self.find(self.table, words.buffer_info()[0], EXPORTER, *tensors) < 0:
            return
        dtype = None if inp is None else inp.dtype
        key, to_check = tuple(words), int(1 in words[:2] or dtype in _AMBIGUOUS)
        self.plans[plan.address] = plan, dtype
        self._entries[key] = plan.address, to_check
        if len(self._entries) > self._most:
            self._make_table(4 * self._most)
        self._enter(self.table, *key, plan.address, to_check)


class ListPlan:
    """The plan of a call on lists of tensors.

    fits: tells whether tensors have the dtypes, shapes and strides that the plan was made for.
    tracked: does a written tensor require grad?
    """

    def __init__(self, plan: CallPlan, inp: Tensors, out: Tensors) -> None:
        inputs, outputs = as_list(inp), as_list(out)
        tensors = [*inputs, *outputs]
        self.plan = plan
        self.fits = fits(tensors)
        self.tracked = any(tensor.requires_grad for tensor in outputs)
        self._nbytes = [tensor.nbytes for tensor in tensors]
        self._inputs, self._lists = len(inputs), (not is_one(inp), not is_one(out))
        addresses = tuple(tensor.data_ptr() for tensor in tensors)  # checked before: an input may be an output
        self._latest = addresses, self._table(addresses)

    def places(self, addresses: tuple[int, ...]) -> tuple[int, int, Any] | None:
        """Input and output for the kernel, and the owner of their tables. None: tensors may share memory."""
        known, table = self._latest
        if addresses == known:
            return table
        spans = sorted(zip(addresses, self._nbytes, strict=True))
        if any(start + nbytes > after for (start, nbytes), (after, _) in pairwise(spans)):
            return None
        table = self._table(addresses)
        self._latest = addresses, table
        return table

    def _table(self, addresses: tuple[int, ...]) -> tuple[int, int, Any]:
        """A table is never written again: a call in the background may still read it."""
        table = array("q", addresses)
        first, _ = table.buffer_info()
        second = first + 8 * self._inputs
        in_list, out_list = self._lists
        if not in_list:
            first = addresses[0]
        if not out_list:
            second = addresses[-1]
        return first if self._inputs else 0, second if len(addresses) > self._inputs else 0, table


class ListShortcuts(dict[ListKey, list[ListPlan]]):
    """The plans of a group for calls on lists, for the fast path."""


def keep(group: Group, plan: CallPlan, what: CallKey, inp: Tensors, out: Tensors) -> None:
    """Keep the plan for the fast paths, if they know such tensors."""
    if group.host.config.debug:  # the fast paths print no debug line
        return
    if what[0] == "barrier" or (is_one(inp) and is_one(out) and not inp.is_complex()):  # it may be conjugate
        known = group.shortcuts.get(what) or group.shortcuts.setdefault(what, KnownCalls(group, what[0]))
        known.add(plan, inp, out)
    elif not (is_one(inp) and is_one(out)):
        tensors = [*as_list(inp), *as_list(out)]
        if all(is_plain(tensor) and tensor.numel() and not tensor.is_quantized for tensor in tensors):
            shortcuts = group.kept.setdefault(ListShortcuts, ListShortcuts())
            plans = shortcuts.setdefault((what, _length(inp), _length(out)), [])
            plans.insert(0, ListPlan(plan, inp, out))
            del plans[_MOST_LISTS:]


def as_list(tensors: Tensors) -> Sequence[torch.Tensor]:
    if tensors is None:
        return ()
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _length(tensors: Tensors) -> int:
    return -1 if is_one(tensors) else len(tensors or ())


class UnevenCalls(dict[tuple[str, int], int]):
    """(collective, root) with blocks of several sizes -> how many more calls of the group exchange sizes."""

    @classmethod
    def of(cls, group: Group) -> "UnevenCalls":
        kept: UnevenCalls = group.kept.setdefault(cls, cls())
        return kept


def ask_for_sizes(group: Group, collective: str, root: int) -> None:
    """Drop the shortcuts of this collective, so that its calls exchange sizes until blocks have one size again."""
    UnevenCalls.of(group)[collective, root] = _EVEN_AGAIN
    drop_shortcuts(group, lambda plan: plan.record.collective == collective)


def drop_shortcuts(group: Group, which: Callable[[CallPlan], bool]) -> None:
    for key, calls in list(group.shortcuts.items()):
        if any(which(plan) for plan, _ in list(calls.plans.values())):
            group.shortcuts.pop(key, None)
    lists = group.kept.get(ListShortcuts) or ListShortcuts()
    for what, known in list(lists.items()):
        if any(which(one.plan) for one in known):
            lists.pop(what, None)


def forget_plans(group: Group) -> None:
    """Drop all plans of the group: the next calls are planned anew."""
    group.plans.clear()
    drop_shortcuts(group, lambda _: True)


def in_heap(group: Group, tensor: torch.Tensor) -> bool:
    """Does the tensor lie in this rank's heap?"""
    return group.heap_first <= tensor.data_ptr() < group.heap_end
