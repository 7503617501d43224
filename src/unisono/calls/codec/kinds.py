"""The types that the safe codec knows, as tables for both directions.

Dataclasses: which classes are no more than their fields, how to find a class by name, and how to rebuild an instance.
"""

import dataclasses
import re
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MemberDescriptorType, ModuleType, NoneType
from typing import Any

import cloudpickle
import numpy as np
import torch

from ...engine.tensors import check_known, dtype_name, dtype_named

ATOMS = frozenset({NoneType, bool, int, float, str, bytes})
"""Types that msgpack knows. Integers of more than 64 bits become leaves."""

CONTAINERS: tuple[type, ...] = (list, tuple, set, frozenset, torch.Size, dict)
"""Types that become a msgpack list: their index here, then their items; for a dict, keys and values in turn."""

HASHED = frozenset({dict, set, frozenset})
"""The containers that find keys or members by their hash."""

RECORD = len(CONTAINERS)
"""The index of dataclasses: their items are module, name, and the fields' names and values in turn."""

MOST_LEVELS = 100
"""The most levels of nested containers."""

SURROGATES = "surrogatepass"
"""Error handler for strings that UTF-8 cannot encode, such as some file names."""

NUMPY_DTYPES = re.compile(r"[<>|][biufcmMSUV][1-9]\d*(\[\w+\])?")
"""numpy's names of the dtypes that are plain bytes: no objects, no structures, and at least one byte."""


@dataclass(frozen=True)
class Leaf:
    """A type without items, which becomes the bytes of a msgpack extension type."""

    type: type
    to_bytes: Callable[[Any], bytes]
    from_bytes: Callable[[bytes], Any]


def _dtype_bytes(dtype: torch.dtype) -> bytes:
    check_known("obj", dtype)
    return dtype_name(dtype).encode()


LEAVES = (
    Leaf(
        int,
        lambda n: n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True),
        lambda b: int.from_bytes(b, "little", signed=True),
    ),
    Leaf(complex, lambda z: struct.pack("<2d", z.real, z.imag), lambda b: complex(*struct.unpack("<2d", b))),
    Leaf(torch.dtype, _dtype_bytes, lambda b: dtype_named(b.decode())),
    Leaf(torch.device, lambda d: str(d).encode(), lambda b: torch.device(b.decode())),
    Leaf(np.str_, lambda s: s.encode("utf-8", SURROGATES), lambda b: np.str_(b.decode("utf-8", SURROGATES))),
    Leaf(np.bytes_, bytes, np.bytes_),
)
"""The index of a leaf is the code of its extension type."""

TENSOR, ARRAY, NUMBER = range(len(LEAVES), len(LEAVES) + 3)
"""Extension codes of torch tensors, of numpy arrays, and of numpy's other scalars."""

SEGMENTED = frozenset({TENSOR, ARRAY, NUMBER})
"""The leaves with bytes behind the tree."""

_BY_VALUE: Mapping[str, type] = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})
"""Cloudpickle's own list: with it, a class that comes twice by value stays one class."""

_HEAP_TYPE = 1 << 9  # the flag of classes made by a class statement, unlike dict or Exception


def find_class(module_name: str, qualified_name: str) -> type | None:
    """The class of this name; None if there is none.

    Searches the modules that are imported, then the classes that came by value, such as classes in the `__main__` of
    the script that started this rank.
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
    """The latest class of this name that cloudpickle has made, but no class inside a function: these share names."""
    if "<locals>" in qualified_name:
        return None
    known = reversed(list(_BY_VALUE.values()))
    return next((c for c in known if (c.__module__, c.__qualname__) == (module_name, qualified_name)), None)


def _in_class(cls: type, name: str) -> Any:
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def _runs_code(cls: type, name: str) -> bool:
    """Would setting this attribute run a descriptor's code? Slots are descriptors of the interpreter itself."""
    attribute = _in_class(cls, name)
    return hasattr(type(attribute), "__set__") and not isinstance(attribute, MemberDescriptorType)
