"""The target of a command (`all_reduce`, `all_reduce.ring`, or a function in a user's file), its costs and its proof.

For many ranks, the rows of rank 0 stand for all if all ranks do the same. Tables that would be too large are not made.
"""

import inspect
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from types import CodeType
from typing import Any

from ....base.errors import ArgumentError, UnisonoError
from ....base.linux import processors
from ....schedule import (
    ROOTED,
    Counts,
    N,
    Proof,
    Schedule,
    count,
    prove,
    sample,
)
from ....schedule.algorithms import Algorithm, find
from ....schedule.choose import choose
from ....schedule.contract import line_text
from ....schedule.exchange import file_algorithm
from ....schedule.table import stray_row

IN_PLACE = frozenset({"all_reduce", "broadcast", "reduce", "scan", "exscan", "barrier"})
"""The collectives whose output is their input."""


@dataclass(frozen=True)
class Target:
    """An algorithm for a number of ranks, and the reason why it is this one."""

    algorithm: Algorithm
    ranks: int
    root: int
    why: str

    @property
    def schedule(self) -> Schedule:
        """The table. It may be large: some algorithms have a row for every pair of ranks."""
        if isinstance(self.algorithm.of, Schedule):
            return self.algorithm.schedule(self.ranks, self.root)
        with _names_line(Path(self._code.co_filename)):
            return self.algorithm.schedule(self.ranks, self.root)

    @property
    def source(self) -> str:
        """Where the algorithm is written, as file:line, or the file of a table."""
        if isinstance(self.algorithm.of, Schedule):
            return self.algorithm.name
        return line_text(self._code.co_filename, self._code.co_firstlineno)

    @property
    def _code(self) -> CodeType:
        code: CodeType = inspect.unwrap(self.algorithm.of).__code__  # type: ignore[arg-type]  # it is no table
        return code


def ranks_of(name: str, default: int = 4) -> int:
    """The number of ranks that a command takes unless told: that of a file, else the default."""
    imported = file_algorithm(name)
    return imported.of.ranks if imported and isinstance(imported.of, Schedule) else default


def find_target(name: str, ranks: int, *, root: int = 0, nbytes: int = 16 << 20) -> Target:
    """The target of this name. Raises ArgumentError for names, ranks and roots that do not exist.

    name: a collective, for the algorithm that a call on `nbytes` uses; a full name such as "all_reduce.ring"; or
    path.py:function; or a file of another program, such as ring.xml.
    """
    if ranks > _MOST_RANKS:
        raise ArgumentError(f"got {ranks:,} ranks, expected at most {_MOST_RANKS:,}")
    if imported := file_algorithm(name):
        found, why = imported, "it is your own"
    elif ".py:" in name:
        found, why = _own(name), "it is your own"
    else:
        wanted, _, short = name.partition(".")
        if short:
            found, why = find(wanted, short), "you named it"
        else:
            choice = choose(wanted, nbytes, max(ranks, 1), oversubscribed=ranks > processors())
            found, why = choice.algorithm, choice.why
    if root and found.collective not in ROOTED:
        raise ArgumentError(f"{found.collective} has no root. Leave out --root {root}.")
    found.check(ranks, root)
    return Target(found, ranks, root, why)


def _own(name: str) -> Algorithm:
    """The function of path.py:function as an algorithm. This runs the file."""
    path, _, title = name.rpartition(":")
    function = getattr(_load(Path(path)), title, None)
    if not callable(function):
        raise ArgumentError(f"{path} has no function {title!r}")
    note = getattr(function, "declared", None)
    if not isinstance(note, Algorithm):
        raise ArgumentError(
            f'{name}: its collective is not declared. Add, for example, @unisono.algorithm("all_reduce").'
        )
    own: Callable[..., Any] = function
    return find(note.collective, own)


def _load(path: Path) -> object:
    spec = spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise ArgumentError(f"{path} does not exist")
    module = module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # as for a script, which may import files beside it
    try:
        with _names_line(path.absolute()):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


@contextmanager
def _names_line(path: Path) -> Iterator[None]:
    """Make an error of the user's file one sentence with its line there, in place of a traceback through this tool."""
    try:
        yield
    except UnisonoError:
        raise
    except (Exception, SystemExit) as error:
        mine = [frame.lineno for frame in extract_tb(error.__traceback__) if Path(frame.filename) == path]
        line = f" ({path}:{mine[-1]})" if mine else ""
        raise ArgumentError(f"{path.name} raises {type(error).__name__}: {error}{line}") from error


MOST_EXACT = 128
"""Up to this number of ranks a table is proved exactly and its rounds can be shown."""

MOST_ROWS = 2_500_000
"""Larger tables are not made, unless all ranks do the same."""

_MOST_RANKS = 1 << 20
_MOST_JOINED = 1 << 14  # ranks of a barrier that is proved: no random number stands for a set that is joined


@dataclass(frozen=True)
class Facts:
    """The costs and the proof of a target, if it is small enough; `note` says why not, and how to ask for it."""

    costs: Counts | None
    proof: Proof | None
    took_s: float
    note: str = ""


def facts(target: Target) -> Facts:
    """Count an algorithm, and prove it in the way that suits the number of ranks. Raises AlgorithmError."""
    algorithm, ranks = target.algorithm, target.ranks
    begin, ask = time.perf_counter(), f"ask for it with --ranks {MOST_EXACT}"
    one = algorithm.symmetric(ranks) if ranks > MOST_EXACT else None
    if ranks > MOST_EXACT and one is None and (rows := algorithm.expected(ranks)[0]) > MOST_ROWS:
        return Facts(None, None, 0.0, f"left out: the table would have about {rows:.2g} rows; {ask}")
    schedule, proof, note = target.schedule if one is None else one, None, ""
    stray = stray_row(schedule)
    moved = int(schedule.rows[:, N].sum()) * (ranks if one is not None else 1)
    apart = one is not None and stray is None  # one chunk stands for all
    chunks = None if apart or ranks <= MOST_EXACT else sample(schedule.chunks, moved)
    if chunks is not None and stray is not None:
        note = f"left out: row {stray} moves a chunk to the place of another one, so no sample can be followed; {ask}"
    elif schedule.collective == "barrier" and ranks > _MOST_JOINED:
        note = f"left out above {_MOST_JOINED:,} ranks; {ask}"
    else:
        proof = prove(schedule, chunks=chunks)
    return Facts(count(schedule), proof, time.perf_counter() - begin, note)
