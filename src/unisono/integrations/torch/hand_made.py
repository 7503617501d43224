"""Process groups that a program puts together: `group = ProcessGroup(...)`, `group._register_backend(..., gloo)`.

torch's C++ class takes backends in C++ only. So such a group gets a backend of Gloo's, for C++ code, and its methods in
Python call our group.
"""

from __future__ import annotations

import weakref
from functools import wraps
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from .group_methods import Calls
from .named_gloo import NamedGloo

_ours: weakref.WeakKeyDictionary[Any, NamedGloo] = weakref.WeakKeyDictionary()


def registering_ours(original: Any) -> Any:
    """torch's `_register_backend`. In place of our backend under Gloo's name, C++ code gets one of Gloo's."""

    def register_backend(group: Any, device: torch.device, kind: Any, backend: Any = None) -> None:
        if not isinstance(backend, NamedGloo):
            original(group, device, kind, backend)
            return
        original(group, device, kind, backend.gloo())
        if torch.device(device).type == "cpu":
            if not _ours:
                _change_methods()
            _ours[group] = backend

    return register_backend


def _change_methods() -> None:
    """Let the methods of torch's class ask first whether the group is one of these. Other groups work as before."""
    kind = c10d.ProcessGroup
    for name in (*vars(Calls), "_get_backend", "_get_sequence_number_for_group", "abort", "shutdown"):
        method = getattr(kind, name, None)
        if callable(method) and not name.startswith("__") and not hasattr(method, "__wrapped__"):
            setattr(kind, name, _asking(method, name))


def _asking(original: Any, name: str) -> Any:
    @wraps(original)
    def method(group: Any, *args: Any, **options: Any) -> Any:
        ours = None if isinstance(group, Calls) else _ours.get(group)
        if ours is None or (name == "_get_backend" and torch.device(args[0]).type != "cpu"):
            return original(group, *args, **options)
        return getattr(ours, name)(*args, **options)

    changed: Any = method  # torch's C++ base class looks at its caller's name to see whether an override calls it
    changed.__code__ = changed.__code__.replace(co_name=name)
    return changed
