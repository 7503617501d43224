"""Gloo's group beside ours, of the same ranks: for C++ code, and for calls that only Gloo can make."""

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
"""Part of the errors of Gloo's connections, which ranks raise after a peer has failed."""
_OF_ANY_SIZE = {"gather": 0, "scatter": 1}
"""Call -> the index of the argument that is a list on the root only."""


def gloo_beside(store: Any, group: Group, timeout: Any, name: str = "") -> Any:
    """Make Gloo's own group of these ranks.

    store: the store of our group.
    name: the name of Gloo's group in this store. Without a name, ranks connect with their first message, and do not
    wait for each other here.
    """
    made: Any = c10d.ProcessGroupGloo
    options = made._Options()  # noqa: SLF001
    options._devices = [made.create_default_device(lazy_init=not name)]  # noqa: SLF001
    options._timeout = timeout  # noqa: SLF001
    return made(PrefixStore(f"gloo beside {NAME}{name}", store), group.rank, group.size, options)


class GlooBeside:
    """Makes calls in Gloo's group, and makes this group with the first call."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._made: Any = None

    def call(self, names: list[str], args: tuple[Any, ...], store: Any, timeout: Any) -> None:
        """Make a call in Gloo's group, once all ranks have agreed on it in ours.

        names: the names of the method; a version of torch has one of these.

        Raises MismatchError if ranks make different calls, or if Gloo refused the call of another rank, with the
        reason; otherwise Gloo's error. After an error Gloo's group ends on all ranks, with all its messages, and the
        next call makes a new one.
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
            self._made.barrier().wait()  # for a tensor with several parts, torch returns the work of one part only

    def _agree(self, record: Callable[[], CallRecord], timeout_s: float | None = None) -> None:
        """Return when all ranks have come with the same record. If `record` raises, the other ranks get the reason."""
        with Call("a call over Gloo", self._group, timeout_s=timeout_s) as call:
            call.plan(Request("barrier", _NOTHING, None, None, in_place=True, says=record()))
        call.run()

    def _make(self, store: Any, timeout: Any) -> Any:
        """A process group of torch's own class. The name is new: a store may have addresses of an earlier group.

        The connection to the store is new, too: other threads may wait for an answer over the old one.
        """
        name = torch.tensor([secrets.randbits(62)], device="cpu")
        broadcast(name, 0, self._group)
        store.check([""])  # raises at once if the store has gone
        store = store.clone()
        kind = c10d.ProcessGroup.BackendType.GLOO
        made: Any = c10d.ProcessGroup(store, self._group.rank, self._group.size)
        made._set_default_backend(kind)  # noqa: SLF001
        backend = gloo_beside(store, self._group, timeout, f" {name.item():x}")
        made._register_backend(torch.device("cpu"), kind, backend)  # noqa: SLF001
        made.barrier().wait()  # all ranks are connected, so all see when one ends the group
        return made


def _record(name: str, places: list[Any], opts: Any) -> CallRecord:
    """The record on which ranks must agree before Gloo makes the call, as Gloo does not compare calls."""
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
