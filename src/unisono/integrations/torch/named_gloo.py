"""`NamedGloo`: our process group under Gloo's name."""

from __future__ import annotations

from typing import Any

from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # torch's __all__ omits it

from .name import NAME
from .patch import hide_from_dynamo
from .process_group import UnisonoProcessGroup


class NamedGloo(UnisonoProcessGroup):
    """A process group that a program has asked of Gloo, and that is ours."""

    asked_as = "gloo"
    _gloo: Any = None

    def name(self) -> str:
        """What the program has asked for. C++ code asks `getBackendName`, and looks for a backend in C++ at "gloo"."""
        return self.asked_as

    def __repr__(self) -> str:
        name = f" {self.getGroupName()!r}" if self.getGroupName() else ""
        return f"<ProcessGroupGloo{name} of {NAME} (UNISONO_AS=gloo): rank {self.group.rank} of {self.group.size}>"

    def gloo(self) -> Any:
        """Gloo's own group of these ranks, for C++ code. They connect with their first message, not here."""
        if self._gloo is None:
            made: Any = c10d.ProcessGroupGloo
            options = made._Options()  # noqa: SLF001
            options._devices = [made.create_default_device(lazy_init=True)]  # noqa: SLF001
            options._timeout = self.options._timeout  # noqa: SLF001
            store = PrefixStore(f"gloo beside {NAME}", self._store)
            self._gloo = made(store, self.group.rank, self.group.size, options)
        return self._gloo

    def shutdown(self) -> None:
        """Leave the group, and Gloo's."""
        self._gloo = None
        super().shutdown()


hide_from_dynamo(NamedGloo)
