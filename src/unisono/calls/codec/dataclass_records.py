"""Dataclasses: which of them are no more than their fields, how a class is found by name, and an instance rebuilt."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MemberDescriptorType, ModuleType
from typing import Any

import cloudpickle

_BY_VALUE: Mapping[str, type] = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})
"""Cloudpickle's own list, so that a class that comes twice by value stays one class."""

_HEAP_TYPE = 1 << 9
"""The flag of classes that a class statement has made, unlike dict or Exception."""


def find(module_name: str, qualified_name: str) -> type | None:
    """The class of this name; None if there is none.

    Searches the modules that are imported, then the classes that came by value, such as those of the `__main__` of the
    script that started this rank.
    """
    return _imported(module_name, qualified_name) or _came_by_value(module_name, qualified_name)


def field_names(cls: type) -> list[str]:
    """The names of a dataclass's fields, in order."""
    return [field.name for field in dataclasses.fields(cls)]


def unfit(cls: type) -> str:
    """Why instances of this class are more than their fields; "" if they are not."""
    if _in_class(cls, "__dataclass_fields__") is None:
        return "it is no dataclass"
    if _in_class(cls, "__del__") is not None:
        return "it has a __del__, whose code would run at its end"
    for base in cls.__mro__[:-1]:
        if not base.__flags__ & _HEAP_TYPE:
            return f"it inherits from {base.__name__}, which is more than fields"
    for name in field_names(cls):
        if _runs_code(cls, name):
            return f"its field {name!r} is a property or another descriptor, whose code would run"
    return ""


def unsent(value: Any) -> list[str]:
    """The attributes of an instance that are not fields, without cached properties, which are made from fields."""
    cls = type(value)
    slots = (
        name
        for base in cls.__mro__
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType) and hasattr(value, name)
    )
    extra = {*getattr(value, "__dict__", {}), *slots} - {*field_names(cls), "__orig_class__"}
    return sorted(name for name in extra if not isinstance(_in_class(cls, name), cached_property))


def rebuild(cls: type, names: Sequence[str], values: Sequence[Any]) -> Any:
    """An instance with these values in its fields. Runs none of its methods."""
    instance: Any = object.__new__(cls)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(instance, name, value)
    return instance


def _imported(module_name: str, qualified_name: str) -> type | None:
    """Looks into dictionaries only: getattr on a lazy module would import it."""
    module = sys.modules.get(module_name)
    if not issubclass(type(module), ModuleType):  # isinstance would call code of a proxy
        return None
    names, found = object.__getattribute__(module, "__dict__"), None
    for part in qualified_name.split("."):
        found = names.get(part)
        if not issubclass(type(found), type):
            return None
        names = vars(found)
    return found


def _came_by_value(module_name: str, qualified_name: str) -> type | None:
    """The latest class of this name that cloudpickle has made; not one inside a function: those share names."""
    if "<locals>" in qualified_name:
        return None
    known = reversed(list(_BY_VALUE.values()))
    return next((c for c in known if (c.__module__, c.__qualname__) == (module_name, qualified_name)), None)


def _in_class(cls: type, name: str) -> Any:
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def _runs_code(cls: type, name: str) -> bool:
    """Whether setting this attribute would run a descriptor's code. Slots are descriptors of the interpreter itself."""
    attribute = _in_class(cls, name)
    return hasattr(type(attribute), "__set__") and not isinstance(attribute, MemberDescriptorType)
