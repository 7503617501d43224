"""The catalogue: all algorithms by name, with their restrictions as data, and the decorators that declare them.

    @algorithm("all_gather")
    def ring(r, p):                                  # rooted collectives: (r, p, root)
        for s in range(p - 1):
            yield send(r, (r + 1) % p, (r - s) % p)

    @composed("all_reduce")
    def ring(p):                                     # rooted collectives: (p, root)
        return there_and_back(table(all_gather.ring, p))

    ring = dual(all_gather.ring, "Partial sums go round a ring.")         # in the file of reduce_scatter

All add the attribute `declared`, an `Algorithm`; the decorators leave the functions as they are.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache, wraps
from math import log2
from types import ModuleType
from typing import Any, TypeVar

from ...base.errors import ArgumentError
from ..combine import transpose
from ..contract import DUALS, ROOTED
from ..symmetric import Symmetric
from ..table import Schedule, X, Y, trace
from .formula import lines

SEGMENTS = 8
"""n in the formulas: into how many segments a pipeline cuts the vector, unless told."""

RADIX = 4
"""k in the formulas: into how many parts a k-nomial tree cuts the ranks."""

_F = TypeVar("_F", bound=Callable[..., Any])

RESTRICTIONS: Mapping[str, tuple[str, Callable[[int], bool]]] = {
    "commutative": ("an operation that commutes", lambda ranks: ranks > 0),
    "even": ("an even number of ranks", lambda ranks: ranks == 1 or ranks % 2 == 0),
    "power_of_two": ("a power of two of ranks", lambda ranks: ranks & ranks - 1 == 0),
}
"""Name of a restriction -> what an algorithm with it needs, and whether a number of ranks will do."""

_FEW = 64  # ranks for which any table is made at once


@dataclass(frozen=True, repr=False)
class Algorithm:
    """One algorithm for a collective.

    Attributes:
        of: A generator of rounds; if `composed`, a function that makes the table from other tables; or a table, for its
            own number of ranks and root only.
        requires: Names of RESTRICTIONS.
        chunks: See `algorithm`.
        result: See `algorithm`.
    """

    collective: str
    name: str
    of: Callable[..., Any] | Schedule
    requires: tuple[str, ...] = ()
    composed: bool = False
    chunks: int | Callable[[int], int] | None = None
    result: int = X

    def __post_init__(self) -> None:
        for restriction in self.requires:
            if restriction not in RESTRICTIONS:
                known = ", ".join(RESTRICTIONS)
                raise ArgumentError(f"{self.full_name}: unknown restriction {restriction!r}. Use {known}.")

    def __repr__(self) -> str:
        return f"Algorithm(collective={self.collective!r}, name={self.name!r}, requires={self.requires!r})"

    @property
    def full_name(self) -> str:
        """Collective and name, such as "all_reduce.ring"."""
        return f"{self.collective}.{self.name}"

    @property
    def doc(self) -> str:
        """Its docstring; in the catalogue it has the five lines that `schedule.algorithms.formula.lines` reads."""
        return "" if isinstance(self.of, Schedule) else self.of.__doc__ or ""

    def allows(self, ranks: int) -> bool:
        """Do its restrictions permit this number of ranks?"""
        return not self._forbids(ranks)

    def schedule(self, ranks: int, root: int = 0) -> Schedule:
        """The table for this number of ranks, cached. Without a root in the collective `root` is ignored.

        Raises as `check` does.
        """
        self.check(ranks, root)
        return _built(self, ranks, root if self.collective in ROOTED else 0)

    def build(self, ranks: int, root: int = 0) -> Schedule:
        """Make the table, with the full name. `Symmetric(p)` ranks make a symmetric table; see `trace`."""
        rooted, of = self.collective in ROOTED, self.of
        if isinstance(of, Schedule):
            if (ranks, root) != (of.ranks, of.root):
                raise ArgumentError(
                    f"{self.name} is a table for {of.ranks} ranks and root {of.root}, expected one for {ranks} ranks "
                    f"and root {root}"
                )
            return of
        if self.composed:
            made: Schedule = of(ranks, root) if rooted else of(ranks)
        else:
            cut = self.chunks(ranks) if callable(self.chunks) else ranks if self.chunks is None else self.chunks
            made = trace(of, ranks, cut, self.collective, root=root if rooted else None, result=self.result)
        return made.replace(collective=self.collective, name=self.full_name, root=root if rooted else 0)

    def check(self, ranks: int, root: int = 0) -> None:
        """Raise ArgumentError if a restriction excludes this number of ranks, or if there is no such root."""
        if ranks < 1:
            raise ArgumentError(f"{self.full_name}: got {ranks} ranks, expected at least 1")
        root = root if self.collective in ROOTED else 0
        if not 0 <= root < ranks:
            raise ArgumentError(f"{self.full_name}: got root {root}, expected 0 to {ranks - 1}")
        for restriction in self._forbids(ranks):
            others = [a.name for a in CATALOGUE.values() if a.collective == self.collective and a.allows(ranks)]
            raise ArgumentError(
                f"{self.full_name}: got {ranks} ranks, expected {RESTRICTIONS[restriction][0]} ({restriction}). "
                f"Use one of {', '.join(others)}."
            )

    def expected(self, ranks: int) -> tuple[float, float]:
        """Estimate the numbers of rows and rounds of its table, from their growth between 64 and 128 ranks."""
        if isinstance(self.of, Schedule):
            return len(self.of.rows), self.of.rounds
        few, many = self.schedule(_FEW), self.schedule(2 * _FEW)
        growths = ((len(few.rows), len(many.rows)), (few.rounds, many.rounds))
        rows, rounds = (b * (ranks / 2 / _FEW) ** log2(b / a) if a else 0.0 for a, b in growths)
        return rows, rounds

    def symmetric(self, ranks: int) -> Schedule | None:
        """The table as the rows of rank 0, which is small for any size. None: the ranks do not all do the same."""
        if not self.allows(ranks) or (ranks > _FEW and self.symmetric(_FEW) is None):
            return None
        try:
            schedule = self.build(Symmetric(ranks))
        except (ArgumentError, TypeError):
            return None
        return schedule if schedule.symmetric else None

    def _forbids(self, ranks: int) -> list[str]:
        return [restriction for restriction in self.requires if not RESTRICTIONS[restriction][1](ranks)]


@lru_cache(maxsize=128)
def _built(algorithm: Algorithm, ranks: int, root: int) -> Schedule:
    schedule = algorithm.build(ranks, root)
    rows = schedule.rows.view()
    rows.flags.writeable = False  # all callers share this table
    return schedule.replace(rows=rows)


def algorithm(
    collective: str,
    *,
    name: str = "",
    chunks: int | Callable[[int], int] | None = None,
    result: int | str | None = None,
    requires: tuple[str, ...] = (),
) -> Callable[[_F], _F]:
    """Declare a generator of rounds as an algorithm.

    Args:
        collective: The collective, such as "all_reduce".
        name: None or "": the function's name.
        chunks: The number of chunks in each buffer, or a function of the number of ranks. By default one for each rank.
        result: The buffer with the result: X (in place) or Y. By default X, and Y for all_to_all.
        requires: Names of RESTRICTIONS.
    """

    def declare(function: _F) -> _F:
        made = _generator(function, collective, name, chunks, result, requires)
        function.declared = made  # type: ignore[attr-defined]
        return function

    return declare


def composed(collective: str, *, name: str = "", requires: tuple[str, ...] = ()) -> Callable[[_F], _F]:
    """Declare a function that makes the table of an algorithm from other tables."""

    def declare(function: _F) -> _F:
        made = Algorithm(collective, name or function.__name__, function, requires, composed=True)
        function.declared = made  # type: ignore[attr-defined]
        return function

    return declare


def dual(
    of: Callable[..., Any], idea: str, *, name: str = "", sent: str = "", requires: tuple[str, ...] = (), **said: str
) -> Callable[..., Schedule]:
    """Declare the dual of an algorithm: its table transposed. Its docstring has the lines of the other one, except:

    idea, said: these lines.
    sent: what the busiest rank sends, if this differs. Then the busiest rank receives what it sends in the other one.
    requires: names of RESTRICTIONS, besides those of the other one.
    """
    other = declared(of)
    text = lines(other.doc)
    amount = f"{sent}; received: {text['bytes']}" if sent else text["bytes"]
    text |= {"bytes": amount, **said}
    del text["idea"]

    @wraps(of)
    def transposed(ranks: int, root: int = 0) -> Schedule:
        return transpose(other.build(ranks, root))

    transposed.__doc__ = "\n".join([idea, *map(": ".join, text.items())])
    return composed(DUALS[other.collective], name=name or other.name, requires=(*other.requires, *requires))(transposed)


def declared(function: Callable[..., Any], collective: str = "") -> Algorithm:
    """A function as an algorithm; without a decorator, a generator of rounds of the given collective."""
    found = getattr(function, "declared", None)
    return found if isinstance(found, Algorithm) else _generator(function, collective)


def table(function: Callable[..., Any], ranks: int, root: int = 0, collective: str = "") -> Schedule:
    """The table of an algorithm for this number of ranks, with the full name, such as "all_gather.ring".

    Args:
        ranks: The number of ranks. `Symmetric(p)` makes a symmetric table, with the rows of rank 0 only.
    """
    return declared(function, collective).build(ranks, root)


@lru_cache(maxsize=128)
def _generator(
    function: Callable[..., Any],
    collective: str,
    name: str = "",
    chunks: int | Callable[[int], int] | None = None,
    result: int | str | None = None,
    requires: tuple[str, ...] = (),
) -> Algorithm:
    title = name or getattr(function, "__name__", "algorithm")
    wanted = ("r", "p", "root") if collective in ROOTED else ("r", "p")
    code = getattr(function, "__code__", None)  # to look at a signature takes 50 times as long
    if code is None or code.co_kwonlyargcount or code.co_varnames[: code.co_argcount] != wanted:
        try:
            inspect.signature(function).bind(*wanted)
        except TypeError as error:
            said = f"{collective}.{title} must be a generator {title}({', '.join(wanted)}): {error}"
            raise ArgumentError(said) from None
    buffers = {None: Y if collective == "all_to_all" else X, X: X, Y: Y, "X": X, "Y": Y}
    if result not in buffers:
        raise ArgumentError(f"{collective}.{title}: got result buffer {result!r}, expected X or Y")
    return Algorithm(collective, title, function, requires, chunks=chunks, result=buffers[result])


AlgorithmLike = str | Algorithm | Schedule | Callable[..., Any]
"""What calls take as their algorithm; see `find`. They take the name of a file, too: see `schedule.exchange`."""


def find(collective: str, algorithm: AlgorithmLike) -> Algorithm:
    """Look up an algorithm of a collective.

    Args:
        algorithm: A name, short ("ring") or full ("all_reduce.ring"); an Algorithm; a Schedule, for its own number of
            ranks only; or a generator of rounds (r, p), for collectives with a root (r, p, root), with or without
            `@algorithm`.

    Raises:
        ArgumentError: The name is unknown, or the algorithm is one of another collective.
    """
    if isinstance(algorithm, str):
        found = CATALOGUE.get(algorithm) or CATALOGUE.get(f"{collective}.{algorithm}")
        if found is None:
            raise _unknown(collective, algorithm)
    elif isinstance(algorithm, Algorithm):
        found = algorithm
    elif isinstance(algorithm, Schedule):
        found = Algorithm(algorithm.collective, algorithm.name, algorithm)
    elif callable(algorithm):
        found = declared(algorithm, collective)
    else:
        raise ArgumentError(
            f"algorithm: got {algorithm!r}, expected a name, an Algorithm, a Schedule or a generator of rounds"
        )
    if found.collective != collective:
        raise ArgumentError(f"{found.full_name} is an algorithm for {found.collective}, expected one for {collective}")
    return found


def _unknown(collective: str, name: str) -> ArgumentError:
    check_collective(collective)
    names = [a.name for a in CATALOGUE.values() if a.collective == collective]
    close = get_close_matches(name.removeprefix(f"{collective}."), names, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return ArgumentError(f"unknown algorithm {name!r} for {collective}.{hint} Use one of {', '.join(names)}.")


def check_collective(name: str) -> None:
    """Raise ArgumentError, with the nearest name, unless this is the name of a collective."""
    if name in COLLECTIVES:
        return
    short = get_close_matches(name, {a.name for a in CATALOGUE.values()}, 1)
    named = [full for full, a in CATALOGUE.items() if a.name in short]
    meant = named if name in short else get_close_matches(name, COLLECTIVES, 2) or named
    hint = f"Did you mean {', '.join(meant)}?" if meant else f"Use one of {', '.join(COLLECTIVES)}."
    raise ArgumentError(f"unknown collective {name!r}. {hint}")


COLLECTIVES = (
    "broadcast", "reduce", "scatter", "gather", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "barrier",
    "scan", "exscan",
)  # fmt: skip

CATALOGUE: dict[str, Algorithm] = {}
"""Full name -> algorithm; for each collective the naive one comes first. `schedule.algorithms` fills it."""


def enter(module: ModuleType) -> None:
    """Enter the algorithms of a file into the catalogue."""
    functions = [f for f in vars(module).values() if callable(f) and hasattr(f, "declared")]
    CATALOGUE.update({algorithm.full_name: algorithm for algorithm in map(declared, functions)})
