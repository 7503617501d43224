"""What a command is about: `all_reduce`, `all_reduce.ring`, or a function in a file of the user's own."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from ....base.errors import ArgumentError
from ....schedule import ROOTED, Schedule
from ....schedule.algorithms import CATALOGUE, Algorithm, find
from ....schedule.algorithms.declare import Declaration
from ....schedule.choose import choose, is_oversubscribed

COLLECTIVES = tuple(dict.fromkeys(entry.collective for entry in CATALOGUE.values()))


@dataclass(frozen=True)
class Target:
    """An algorithm for a number of ranks, and the reason why it is this one."""

    algorithm: Algorithm
    ranks: int
    root: int
    why: str

    def check(self) -> None:
        """Raise ArgumentError for ranks or a root that the algorithm does not take."""
        self.algorithm.check(self.ranks, self.root)

    @property
    def schedule(self) -> Schedule:
        """The table. Large for many ranks: some algorithms have a row for every pair."""
        return self.algorithm.schedule(self.ranks, self.root)

    @property
    def source(self) -> str:
        """Where the algorithm is written, as file:line."""
        build = self.algorithm.build
        function = inspect.unwrap(build.args[0] if isinstance(build, partial) else build)
        file = Path(function.__code__.co_filename)
        here = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
        return f"{here}:{function.__code__.co_firstlineno}"


def find_target(
    name: str, ranks: int, *, algorithm: str = "", collective: str = "", root: int = 0, nbytes: int = 16 << 20
) -> Target:
    """The target of that name. Raises ArgumentError for what does not exist.

    name: a collective, a full name such as "all_reduce.ring", or path.py:function. algorithm: one by name, with a
    collective; "" for the one that a call with so many bytes uses. collective: what a function of the user's own is
    meant to be, where no decorator says it.
    """
    if ".py:" in name:
        found, why = _own(name, collective), "it is your own"
    else:
        wanted, _, short = name.partition(".")
        check_collective(wanted)
        if short and algorithm:
            raise ArgumentError(f"{name} names an algorithm already: leave out --algorithm {algorithm}")
        if short or algorithm:
            found, why = find(wanted, short or algorithm), "you named it"
        else:
            choice = choose(wanted, nbytes, max(ranks, 1), oversubscribed=is_oversubscribed(ranks))
            found, why = choice.algorithm, choice.why
    if root and found.collective not in ROOTED:
        raise ArgumentError(f"{found.collective} has no root: leave out --root {root}")
    return Target(found, ranks, root, why)


def check_collective(name: str) -> None:
    """Raise ArgumentError, with what may have been meant, unless this is the name of a collective."""
    if name in COLLECTIVES:
        return
    short = get_close_matches(name, {entry.name for entry in CATALOGUE.values()}, 1)
    named = [full for full, entry in CATALOGUE.items() if entry.name in short]
    meant = named if name in short else get_close_matches(name, COLLECTIVES, 2) or named
    known = f"there are {', '.join(COLLECTIVES)}; or name path.py:function"
    hint = f"did you mean {', '.join(meant)}?"
    raise ArgumentError(f"{name!r} is no collective: {hint if meant else known}")


def _own(name: str, collective: str) -> Algorithm:
    """The function of path.py:function as an algorithm. This runs the file."""
    path, _, title = name.rpartition(":")
    function = getattr(_load(Path(path)), title, None)
    if not callable(function):
        raise ArgumentError(f"{path} has no function {title!r}")
    note = getattr(function, "declared", None)
    meant = collective or (note.collective if isinstance(note, Declaration) else "")
    if meant not in COLLECTIVES:
        raise ArgumentError(f"{name}: say what it is meant to be: --collective with one of {', '.join(COLLECTIVES)}")
    own: Callable[..., Any] = function
    return find(meant, own)


def _load(path: Path) -> object:
    spec = spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise ArgumentError(f"there is no file {path}")
    module = module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # as for a script: it may import its neighbours
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module
