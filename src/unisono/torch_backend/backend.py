"""A backend within the group, from torch 2.14 on: for C++ code that goes past the group to the backend of a device."""

from __future__ import annotations

from types import WrapperDescriptorType
from typing import TYPE_CHECKING, Any

import torch
import torch._C._distributed_c10d as c10d

from .calls import Calls
from .dynamo import hide_from_dynamo
from .register import NAME

if TYPE_CHECKING:
    from ..membership import Group

__all__ = ["POSSIBLE", "UnisonoBackend", "add_backend"]

POSSIBLE = not isinstance(c10d.Backend.__init__, WrapperDescriptorType)
"""Can a backend be written in Python? Up to torch 2.13 its class has no constructor of its own, but Python's."""


class UnisonoBackend(Calls, c10d.Backend):
    """The calls of a group for `batch_p2p_ops` and other operators which ask for a backend.

    Alone it would serve a group of torch's own class, but not well. The way through torch's dispatcher makes small
    calls slower, and works that come back on it can be waited for and nothing else: they do not say whether they are
    over, what they raised, or whom a message came from.
    """

    # All must be here: one that is not, C++ asks Python for, which asks C++, and so on for ever.
    supports_coalescing = supports_reconfigure = supports_shrinking = supports_splitting = supports_window = False
    supports_time_estimate = _supports_time_estimate = False

    def __init__(self, group: Group) -> None:
        c10d.Backend.__init__(self, group.rank, group.size)
        self.group = group

    def getBackendName(self) -> str:  # noqa: N802
        """The name for `init_process_group`."""
        return NAME


def add_backend(made: Any, group: Group) -> None:
    """Give a process group of torch a backend for CPU tensors, where that is possible."""
    if POSSIBLE:
        # A process group has one backend of each type, for all devices; nobody else's is of this one.
        undefined = c10d.ProcessGroup.BackendType.UNDEFINED
        made._register_backend(torch.device("cpu"), undefined, UnisonoBackend(group))  # noqa: SLF001


hide_from_dynamo(UnisonoBackend)
