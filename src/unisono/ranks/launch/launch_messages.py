"""What the parent of a local world and its ranks send each other; `docs/processes.md` draws the messages.

Their payloads, a rank's setup, functions, arguments and results, are pickled. Code that the other process can import is
pickled by name; everything else (`__main__`, notebook cells, lambdas, modules on no path) by value, and so are tensors.
"""

import io
import pickle
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import cloudpickle

from ...base.config import Config
from ...schedule import Hosts

STARTED = "started"
"""Rank to parent, once per run: the user's function is loaded and begins now."""


@dataclass(frozen=True)
class RankSetup:
    """Parent to rank, once, as a payload: its rank, and the environment of its process.

    The message carries the descriptors of its host's arena, of the working directory, and of a file where ranks of
    several hosts tell each other their addresses (torch's FileStore).

    secret: only these ranks know it.
    """

    rank: int
    hosts: Hosts
    config: Config | None
    environ: dict[str, str]
    argv: list[str]
    secret: bytes


class Task(NamedTuple):
    """Parent to rank, once per run. The payload is the pickled (function, args, kwargs).

    The message carries two descriptors: for standard output and standard error from now on.
    """

    path: list[str]  # the parent's sys.path: the function may need modules from it
    sources: dict[str, tuple[int, float | None, list[str], str]]
    """Source lines that are in no file (notebook cells), in linecache's form, for tracebacks."""


class Report(NamedTuple):
    """How one rank came out of a run.

    kind: `returned`, `raised`, `waited` (it raised because a peer did not come), `died`, `stuck`, or `starting` (it has
    not begun the function). The parent writes the last three.
    how: the end of the sentence "rank 2 ...".
    text: the traceback or the stack.
    at_ns: the time on the host's monotonic clock.
    closed: the group of all ranks is closed or broken now.
    payload: the pickled result, the pickled exception, or nothing. It travels beside the report.
    """

    rank: int
    kind: str
    how: str
    text: str = ""
    at_ns: int = 0
    closed: bool = False
    payload: bytes = b""


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
    """A pickler that registers with cloudpickle, as they come, the modules that the other process cannot import.

    Functions keep the names of their files, which cloudpickle drops from 3.1.3 on: errors name the user's line.
    """

    def __init__(self, buffer: io.BytesIO, undo: ExitStack) -> None:
        super().__init__(buffer)
        self._undo = undo
        self._met: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            make, arguments = self.dispatch_table[CodeType](value)
            return _code, (make, arguments, value.co_filename)
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


def _code(make: Callable[..., CodeType], arguments: tuple[Any, ...], file: str) -> CodeType:
    return make(*arguments).replace(co_filename=file)


def _importable(module: ModuleType) -> bool:
    """Would an import by this name in a fresh process find this module's file?

    True for modules without a Python file (built in, in C, generated): they could not be pickled by value anyway.
    """
    file, (above, _, _) = getattr(module, "__file__", None) or "", module.__name__.rpartition(".")
    top = module.__name__.partition(".")[0]
    if type(module) is not ModuleType or not file.endswith(".py") or top in sys.stdlib_module_names:
        return True
    package = sys.modules.get(above)
    if above and not (package and _importable(package)):
        return False
    path = getattr(package, "__path__", None)
    found = filter(None, (finder.find_spec(module.__name__, path) for finder in sys.meta_path))
    return next((spec.origin == file for spec in found), False)
