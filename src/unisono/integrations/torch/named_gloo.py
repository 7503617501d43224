"""`NamedGloo`: our process group under Gloo's name, with Gloo's own group beside it, of the same ranks.

C++ code gets Gloo's group, and so do calls that only Gloo can make. A program may put a group together:
`group = ProcessGroup(...)`, `group._register_backend(..., gloo)`. torch's C++ class takes backends in C++ only. So such
a group gets a backend of Gloo's, and its methods in Python call our group.
"""

import secrets
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore

from ...base.records import CallRecord
from ...base.release import NAME
from ...calls.arguments import count_name
from ...calls.collectives.broadcast import broadcast
from ...calls.dispatch import Call
from ...calls.ops import resolve
from ...ranks.group.group import Group
from .group_methods import Calls
from .other_ways import Method, now, results
from .patch import hide_from_dynamo
from .patch_hooks import inner
from .process_group import UnisonoProcessGroup

_CONNECTION = "gloo/transport"  # part of the errors of Gloo's connections, which ranks raise after a peer has failed
_OF_ANY_SIZE = {"gather": 0, "scatter": 1}  # call -> the index of the argument that is a list on the root only


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

    def call(self, name: str, args: tuple[Any, ...], store: Any, timeout: Any) -> None:
        """Make a call by the method of this name in Gloo's group, once all ranks have agreed on it in our group.

        Raises MismatchError if ranks make different calls, or if Gloo refused the call of another rank, with the
        reason; otherwise Gloo's error. After an error Gloo's group ends on all ranks, with all its messages, and the
        next call makes a new one.
        """
        *places, opts = args
        record, limit_s = _record(name, places, opts), opts.timeout.total_seconds()
        self._agree(lambda: record, limit_s if limit_s >= 0 else None)
        failed: list[RuntimeError] = []

        def made() -> CallRecord:
            try:
                if self._made is None:
                    self._made = self._make(store, timeout)
                self._made.set_timeout(timeout)
                with torch.no_grad():
                    getattr(self._made, name)(*args).wait()
                    self._made.barrier().wait()  # of a tensor with several parts, torch returns the work of one part
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

    def _agree(self, record: Callable[[], CallRecord], timeout_s: float | None = None) -> None:
        """Return when all ranks have come with the same record. If `record` raises, the other ranks get the reason."""
        with Call("a call over Gloo", self._group, timeout_s=timeout_s) as call:
            call.agree(record())
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


class NamedGloo(UnisonoProcessGroup):
    """A process group that a program has asked of Gloo, and that unisono has made."""

    asked_as = "gloo"
    lenient = True
    Device, _Options = c10d.ProcessGroupGloo.Device, c10d.ProcessGroupGloo._Options  # type: ignore[attr-defined]  # noqa: SLF001
    create_device = staticmethod(c10d.ProcessGroupGloo.create_device)
    create_default_device = staticmethod(c10d.ProcessGroupGloo.create_default_device)
    _gloo: Any = None
    _beside: GlooBeside | None = None

    def name(self) -> str:
        """The name that the program has asked for. C++ code reads `getBackendName`; "gloo" would mean a C++ backend."""
        return self.asked_as

    def __repr__(self) -> str:
        name = f" {self.getGroupName()!r}" if self.getGroupName() else ""
        return f"<ProcessGroupGloo{name} of {NAME} (UNISONO_AS=gloo): rank {self.group.rank} of {self.group.size}>"

    def gloo(self) -> Any:
        """Gloo's own group of these ranks, for C++ code."""
        if self._gloo is None:
            self._gloo = gloo_beside(self._store, self.group, self.options._timeout)  # noqa: SLF001
        return self._gloo

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later calls, also of those that C++ code makes in Gloo's group."""
        super().set_timeout(timeout)
        if self._gloo is not None:
            self._gloo.set_timeout(timeout)

    def over_gloo(self, method: Method, args: tuple[Any, ...]) -> c10d.Work:
        """Make a call in Gloo's group, in the background if the call says so."""
        *places, opts = args
        kept, inner, timeout = [_kept(place) for place in places], now(opts), self.options._timeout  # noqa: SLF001
        beside = self._beside = self._beside or GlooBeside(self.group)
        store, inference = self._store, torch.is_inference_mode_enabled()

        def action(_: str | None) -> None:
            with torch.inference_mode(inference):  # the caller's mode, also on the worker
                beside.call(method.__name__, (*kept, inner), store, timeout)

        several = method.__name__ == "allgather" and len(kept[0]) > 1
        return self._started(action, method.__name__, opts, kept[0] if several else results(method, args))

    def _become(self, group: Group, store: Any) -> None:
        self._gloo = self._beside = None
        super()._become(group, store)

    def shutdown(self) -> None:
        """Leave the group, and Gloo's group."""
        self._gloo = self._beside = None
        super().shutdown()


def _kept(place: Any) -> Any:
    """An argument, with lists that the caller does not change."""
    return [_kept(item) for item in place] if isinstance(place, list | tuple) else place


hide_from_dynamo(NamedGloo)


def registering_ours(original: Any) -> Any:
    """torch's `_register_backend`. In place of our backend under Gloo's name, C++ code gets one of Gloo's."""

    def register_backend(group: Any, device: torch.device, kind: Any, backend: Any = None) -> None:
        if not isinstance(backend, NamedGloo):
            original(group, device, kind, backend)
            return
        original(group, device, kind, backend.gloo())
        if torch.device(device).type == "cpu":
            if not inner:
                _change_methods()
            inner[group] = backend

    return register_backend


def _change_methods() -> None:
    """Let the methods of torch's class ask first whether the group is one of these. Other groups work as before."""
    kind = c10d.ProcessGroup
    more = "_get_backend", "_get_sequence_number_for_group", "abort", "merge_remote_group", "shutdown", "split_group"
    for name in (*dir(Calls), *more):
        method = getattr(kind, name, None)
        if callable(method) and not name.startswith("__") and not hasattr(method, "__wrapped__"):
            setattr(kind, name, _asking(method, name))


def _asking(original: Any, name: str) -> Any:
    @wraps(original)
    def method(group: Any, *args: Any, **options: Any) -> Any:
        ours = None if isinstance(group, Calls) else inner.get(group)
        if ours is None or (name == "_get_backend" and torch.device(args[0]).type != "cpu"):
            return original(group, *args, **options)
        return getattr(ours, name)(*args, **options)

    changed: Any = method  # torch's C++ base class looks at its caller's name to see whether an override calls it
    changed.__code__ = changed.__code__.replace(co_name=name)
    return changed
