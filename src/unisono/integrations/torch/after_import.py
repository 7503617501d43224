"""`after_import`: change a module of torch that takes long to import, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with a module: now if it is loaded, otherwise as soon as it is."""
    if (module := sys.modules.get(name)) is not None:
        then(module)
    elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder(MetaPathFinder):
    """Finds one module with the other finders, and calls `then` when it has been loaded."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self._then = name, then

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            @wraps(load)
            def load_and_tell(module: ModuleType) -> None:
                load(module)
                self._then(module)

            spec.loader.exec_module = load_and_tell  # type: ignore[method-assign]
        return spec
