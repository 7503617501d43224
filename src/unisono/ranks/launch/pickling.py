"""Functions, arguments and results as bytes, and back.

Code that the other process can import is pickled by name; everything else (`__main__`, notebook cells, lambdas, modules
on no path) by value, and so are tensors.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle


def pack(value: object) -> bytes:
    """The pickled bytes of a value. Raises whatever the value's own pickling raises."""
    buffer = io.BytesIO()
    with ExitStack() as undo:
        _Packer(buffer, undo).dump(value)
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """The value that another process of the same user has given to `pack`."""
    return pickle.loads(data)  # noqa: S301  both processes run the same user's program


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that registers with cloudpickle, as they come, the modules that the other process cannot import."""

    def __init__(self, buffer: io.BytesIO, undo: ExitStack) -> None:
        super().__init__(buffer)
        self._undo = undo
        self._met: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType | type | ModuleType):
            self._meet(value)
        return super().reducer_override(value)

    def _meet(self, value: FunctionType | type | ModuleType) -> None:
        name = value.__name__ if isinstance(value, ModuleType) else value.__module__
        if not isinstance(name, str) or name in self._met:
            return
        self._met.add(name)
        module = sys.modules.get(name)
        if module is None or name in cloudpickle.list_registry_pickle_by_value() or _importable(module):
            return
        cloudpickle.register_pickle_by_value(module)
        self._undo.callback(cloudpickle.unregister_pickle_by_value, module)


def _importable(module: ModuleType) -> bool:
    """Would an import by this name in a fresh process find this module's file?

    True for modules without a Python file (built in, in C, generated): they could not be pickled by value anyway.
    """
    file = getattr(module, "__file__", None) or ""
    parts = module.__name__.split(".")
    if type(module) is not ModuleType or not file.endswith(".py") or parts[0] in sys.stdlib_module_names:
        return True
    path: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        found = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and spec.origin == file
