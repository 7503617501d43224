"""`NamedGloo`: our process group under Gloo's name."""

from __future__ import annotations

from typing import Any

from torch._C import _distributed_c10d as c10d

from .gloo_beside import GlooBeside, gloo_beside
from .group_methods import Calls
from .name import NAME
from .other_ways import Method, now, results
from .patch import hide_from_dynamo
from .process_group import UnisonoProcessGroup


class NamedGloo(UnisonoProcessGroup):
    """A process group that a program has asked of Gloo, and that is ours."""

    asked_as = "gloo"
    lenient = True
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

    def over_gloo(self, method: Method, args: tuple[Any, ...]) -> c10d.Work:
        """Make a call in Gloo's group, in the background if the call says so."""
        *places, opts = args
        kept, inner, timeout = [_kept(place) for place in places], now(opts), self.options._timeout  # noqa: SLF001
        calls = vars(Calls)
        names = [method.__name__, *(name for name, made in calls.items() if made is calls[method.__name__])]
        beside = self._beside = self._beside or GlooBeside(self.group)
        store = self._store

        def action(_: str | None) -> None:
            beside.call(names, (*kept, inner), store, timeout)

        several = method.__name__ == "allgather" and len(kept[0]) > 1
        return self._started(action, method.__name__, opts, kept[0] if several else results(method, args))

    def shutdown(self) -> None:
        """Leave the group, and Gloo's group."""
        self._gloo = self._beside = None
        super().shutdown()


def _kept(place: Any) -> Any:
    """An argument, with lists that the caller does not change."""
    return [_kept(item) for item in place] if isinstance(place, list | tuple) else place


hide_from_dynamo(NamedGloo)
