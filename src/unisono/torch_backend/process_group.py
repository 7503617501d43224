"""A process group of torch.distributed, in Python: Python code calls its methods directly, C++ code by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch._C._distributed_c10d as c10d
from torch import distributed

from ..records import How
from .calls import Calls
from .dynamo import hide_from_dynamo
from .meeting import leave
from .register import NAME
from .works import Finished, TorchWork

if TYPE_CHECKING:
    from ..membership import Group

__all__ = ["UnisonoProcessGroup"]

_CPU = torch.device("cpu")


class UnisonoProcessGroup(Calls, c10d.ProcessGroup):  # type: ignore[misc]  # C++ calls one form of each method only
    """A group of torch.distributed. The methods with capital letters are those that C++ code asks for."""

    supports_coalescing = supports_splitting = supports_shrinking = supports_time_estimate = False

    def __init__(self, group: Group, store: c10d.Store) -> None:
        c10d.ProcessGroup.__init__(self, group.rank, group.size)  # type: ignore[call-arg]  # it has this form
        self.group = group
        self._store: Any = store
        self._name, self._description = "", "undefined"

    def getBackendName(self) -> str:  # noqa: N802
        """The name for `init_process_group`."""
        return NAME

    def getRank(self) -> int:  # noqa: N802
        """This process's rank."""
        return self.group.rank

    def getSize(self) -> int:  # noqa: N802
        """The number of ranks."""
        return self.group.size

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """torch names its groups."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """What torch has named this group."""
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """A user may describe a group."""
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        """What a user has said of this group."""
        return self._description

    rank, size, name = getRank, getSize, getBackendName

    def get_group_store(self) -> Any:
        """The store where the ranks have met."""
        return self._store

    def _get_sequence_number_for_group(self) -> int:
        """How many collective calls this rank has made in this group; it begins by itself."""
        return self.group.host.call_number - 1

    def _set_sequence_number_for_group(self) -> None:
        """Nothing has to be agreed on."""

    @property
    def _device_types(self) -> list[torch.device]:
        others = super()._device_types if self.elsewhere else []
        return [_CPU, *(device for device in others if device != _CPU)]

    def _get_backend(self, device: torch.device) -> Any:
        """The backend for tensors of a device: for those of the CPU it is the group itself."""
        if self.elsewhere and torch.device(device).type != "cpu":
            return super()._get_backend(device)
        return self

    def supports_tensor_alloc(self, _device: torch.device) -> bool:
        """Does the backend allocate tensors for others? No."""
        return False

    def shutdown(self) -> None:
        """Finish what runs in the background, and leave the group."""
        self._store = None
        leave(self.group, with_store=distributed.group.WORLD is self)

    def abort(self) -> None:
        """Leave the group at once; calls that run raise an error, here and on the other ranks."""
        self.group.abandon(How.ABANDONED, "aborted the group")


UnisonoProcessGroup.base = UnisonoProcessGroup.__mro__[1]
hide_from_dynamo(UnisonoProcessGroup, Calls, Finished, TorchWork)
