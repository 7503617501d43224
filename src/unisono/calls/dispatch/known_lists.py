"""The fast path of coalesced calls: a call on lists of tensors like those of an earlier call.

Compiled code looks at the tensors. If they have the dtypes and sizes of the earlier ones, are plain, and share no
memory, it packs them, runs the plan and unpacks them. So such a call costs less than a call for each tensor.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from ...base.python import is_from_below
from ...engine.compile.program import DONE, NO_PLAN, ListWord
from ...engine.kernels import kernel
from ...engine.process.nested import caller, holds
from ...engine.rank import interpreter
from ...engine.tensors import EXPORTER, mark_written, needed_by_autograd, use_count
from ...ranks.group import current
from ...ranks.group.group import Group
from .checking import checking
from .drive import Run, complete, failed
from .known import CallKey, is_neg, tells_all
from .planning import make_plan
from .request import Request

_MOST_LISTS = 64  # that a group knows
MOST_TENSORS = 128
"""The most tensors of such lists: each is compared with each, as they must share no memory."""

_numel, _dtype, _requires_grad = torch.Tensor.numel, attrgetter("dtype"), attrgetter("requires_grad")


class _KnownList(NamedTuple):
    """A call on tensors of one dtype that pass through a flat one at once.

    run: the call on flat tensors.
    written: the index of the list that this rank writes, or None.
    words: of a `ListWord` each; they point into `kept`.
    """

    run: Run
    written: int | None
    words: array[int]
    kept: tuple[array[int], ...]


def _key(what: CallKey, tensors: Sequence[torch.Tensor]) -> tuple[object, ...]:
    return what, *map(_dtype, tensors), *map(_numel, tensors)


def keep_list(
    what: CallKey,
    group: Group,
    request: Request,
    tensors: Sequence[torch.Tensor],
    table: array[int],
    rows: array[int],
    sides: tuple[int | None, int | None],
) -> None:
    """Keep a call for `call_at_once`, if compiled code knows such tensors.

    request: the call on flat tensors, which nothing else uses.
    table: the addresses of the tensors of all lists, their bytes, and DLPack's dtypes.
    rows: an index and the bytes of each part.
    sides: the indices of the lists that this rank reads and writes, or None.
    """
    key = _key(what, tensors)
    if key in group.known_lists or not tells_all(group, request):
        return
    run = Run.of(make_plan(group, request, what[3]), request, what[3])
    table, words = table[:], array("q", bytes(8 * ListWord.WORDS))
    words[ListWord.PLAN], words[ListWord.INP], words[ListWord.OUT] = run.plan.address, run.inp, run.out
    words[ListWord.GIVES], words[ListWord.GETS] = (-1 if side is None else side for side in sides)
    words[ListWord.PARTS], words[ListWord.BLOCKS] = len(rows) // 2, group.size
    words[ListWord.NBYTES] = request.like.nbytes
    words[ListWord.TABLE], words[ListWord.ROWS] = table.buffer_info()[0], rows.buffer_info()[0]
    if len(group.known_lists) >= _MOST_LISTS:
        group.known_lists.clear()
    group.known_lists[key] = _KnownList(run, sides[1], words, (table, rows))


@holds("group")
def call_at_once(what: CallKey, lists: Sequence[Any], group: Group | None, timeout_s: float | None) -> bool:
    """Make a call on lists like those of an earlier call. False: it must be checked and planned."""
    if group is None:
        group = current.default
        if group is None:
            return False
    try:
        tensors = [*chain(*lists)] if all(isinstance(one, list | tuple) for one in lists) else []
        known = group.known_lists[_key(what, tensors)]
        if any(map(is_neg, tensors)):
            return False
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        if is_from_below(error):
            with checking(group, what[0]):
                raise
        return False
    if not (timeout_s is None or (timeout_s.__class__ is float and timeout_s >= 0.0)) or group.lock.locked():
        return False
    with group.lock:
        if (group.worker is not None and group.worker.busy) or group.run is not interpreter():
            return False
        try:
            words, _ = known.words.buffer_info()
            status = kernel("known.call_list")(words, EXPORTER, group.state, *tensors)
            if status == NO_PLAN:
                return False
            if status != DONE:
                complete(group, known.run, timeout_s, status=status)
                kernel("known.unpack")(words)
        except BaseException as error:
            failed(group, known.run, error, caller())
            raise
    written = () if known.written is None else lists[known.written]
    if any(map(_requires_grad, written)) or max(map(use_count, written), default=0) > 1:
        mark_written(needed_by_autograd(written))
    return True
