"""A group of Gloo's beside one of ours, of the same ranks: for C++ code, and for calls that only Gloo can make."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # torch's __all__ omits it

from ...base.records import CallRecord
from ...calls.arguments import count_name
from ...calls.collectives import broadcast
from ...calls.dispatch import Call, Request
from ...calls.ops import resolve
from ...ranks.group.group import Group
from .name import NAME

_NOTHING = torch.empty(0, dtype=torch.uint8, device="cpu")
_CONNECTION = "gloo/transport"
"""In errors of Gloo's connections, which are those of ranks whose peers have failed."""
_OF_ANY_SIZE = {"gather": 0, "scatter": 1}
"""Calls in which one list is the root's: which argument it is."""


def gloo_beside(store: Any, group: Group, timeout: Any, name: str = "") -> Any:
    """Make Gloo's own group of these ranks.

    store: of the group. name: of this one among others there; without one, ranks connect with their first message, and
    do not wait for each other here.
    """
    made: Any = c10d.ProcessGroupGloo
    options = made._Options()  # noqa: SLF001
    options._devices = [made.create_default_device(lazy_init=not name)]  # noqa: SLF001
    options._timeout = timeout  # noqa: SLF001
    return made(PrefixStore(f"gloo beside {NAME}{name}", store), group.rank, group.size, options)


class GlooBeside:
    """Makes calls in a group of Gloo's, which it makes with the first of them."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._made: Any = None

    def call(self, names: list[str], args: tuple[Any, ...], store: Any, timeout: Any) -> None:
        """Make a call in Gloo's group, once all ranks have told each other in ours that they make it.

        names: of the method; torch's versions have one or the other. Raises MismatchError where ranks make different
        calls, or where Gloo has refused the call of another rank, with the reason; else what Gloo raises. After that
        Gloo's group ends on all ranks, whatever is on its way there, and the next call makes another one.
        """
        *places, opts = args
        record, limit_s = _record(names[0], places, opts), opts.timeout.total_seconds()
        self._agree(lambda: record, limit_s if limit_s >= 0 else None)
        failed: list[RuntimeError] = []

        def made() -> CallRecord:
            try:
                if self._made is None:
                    self._made = self._make(store, timeout)
                self._call(names, args)
            except RuntimeError as error:
                if _CONNECTION not in str(error):
                    raise  # it is this rank's call that is wrong
                failed.append(error)
            return record._replace(words=f"{record.words}, which {'has failed' if failed else 'is over'}")

        try:
            self._agree(made)
        except BaseException:
            self._end()
            raise
        if failed:
            self._end()
            raise failed[0]

    def _end(self) -> None:
        if self._made is not None:
            self._made.abort()
            self._made = None

    def _call(self, names: list[str], args: tuple[Any, ...]) -> None:
        method = next(getattr(self._made, name) for name in names if hasattr(c10d.ProcessGroup, name))
        with torch.no_grad():
            method(*args).wait()
            self._made.barrier().wait()  # of a tensor with several parts, the work is that of one part

    def _agree(self, record: Callable[[], CallRecord], timeout_s: float | None = None) -> None:
        """Return when all ranks have come with the same record. If making it raises, the other ranks hear why."""
        with Call("a call over Gloo", self._group, timeout_s=timeout_s) as call:
            call.plan(Request("barrier", _NOTHING, None, None, in_place=True, says=record()))
        call.run()

    def _make(self, store: Any, timeout: Any) -> Any:
        """A process group of torch's own class. The name is new: a store may have addresses of an earlier group.

        The connection to the store is new, too: other threads may wait for an answer over the old one.
        """
        name = torch.tensor([secrets.randbits(62)], device="cpu")
        broadcast(name, 0, self._group)
        store.check([""])  # raises at once where the store has gone
        store = store.clone()
        kind = c10d.ProcessGroup.BackendType.GLOO
        made: Any = c10d.ProcessGroup(store, self._group.rank, self._group.size)
        made._set_default_backend(kind)  # noqa: SLF001
        backend = gloo_beside(store, self._group, timeout, f" {name.item():x}")
        made._register_backend(torch.device("cpu"), kind, backend)  # noqa: SLF001
        made.barrier().wait()  # all are connected, so all see it if one ends the group
        return made


def _record(name: str, places: list[Any], opts: Any) -> CallRecord:
    """What ranks must agree on before Gloo, which does not compare calls, makes this one."""
    told: list[str] = []
    if not name.startswith("all_to_all") and name != "alltoall":
        for at, place in enumerate(places):
            if at != _OF_ANY_SIZE.get(name):
                told += _shapes(place)
    op = str(resolve(opts.reduceOp)) if hasattr(opts, "reduceOp") else ""
    root = f"root {opts.rootRank} " if hasattr(opts, "rootRank") else ""
    which = f"tensor {opts.rootTensor} " if getattr(opts, "rootTensor", 0) else ""
    told.append(f"{root}{which}over Gloo")
    return CallRecord(name, op=op, words=", ".join(told))


def _shapes(place: Any) -> list[str]:
    if isinstance(place, torch.Tensor):
        return [count_name(place)]
    return [shape for item in place for shape in _shapes(item)] if isinstance(place, list | tuple) else []
