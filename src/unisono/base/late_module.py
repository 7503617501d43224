"""`LateModule`: a module that is imported when a name of it is first used.

A process that makes one call need not import what other calls need. An `import` statement in a function does that, too,
but it takes a microsecond each time; use it where a function is slow or rare.

    if TYPE_CHECKING:
        from ..calls import p2p
    else:
        p2p = LateModule("..calls.p2p", __package__)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LateModule:
    """A module, imported when its first name is asked for.

    name: of the module, relative to the package as in an `import` statement.
    """

    def __init__(self, name: str, package: str) -> None:
        self._name, self._package = name, package

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._name, self._package), name)
        self.__dict__[name] = value  # Python does not ask this method for it again
        return value
