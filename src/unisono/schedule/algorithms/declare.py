"""Decorators that declare an algorithm: one for a generator of rounds, one for a function that makes a table.

    @algorithm("all_gather")
    def ring(r, p):                                  # rooted collectives: (r, p, root)
        for s in range(p - 1):
            yield send(r, (r + 1) % p, (r - s) % p)

    @composed("reduce_scatter")
    def ring(p):                                     # rooted collectives: (p, root)
        return transpose(table(all_gather.ring, p))

The decorators leave the functions as they are and add the attribute `declared`.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ...base.errors import ArgumentError
from ..contract import ROOTED
from ..table import Schedule, X, Y, trace

_F = TypeVar("_F", bound=Callable[..., Any])


class Symmetric(int):
    """A number of ranks for which `table` makes the rows of rank 0 only, as all ranks are expected to do the same.

    If they do not, `table` raises ArgumentError or TypeError.
    """


class Declaration(NamedTuple):
    """The properties of an algorithm.

    requires: names of restrictions, such as "power_of_two".
    chunks: the number of chunks in each buffer, or a function that gives it for a number of ranks.
    result: X or Y.
    rounds: True if the function yields rounds, False if it returns the table.
    """

    collective: str
    name: str
    requires: tuple[str, ...] = ()
    chunks: int | Callable[[int], int] = 1
    result: int = X
    rounds: bool = True


def algorithm(
    collective: str,
    *,
    name: str = "",
    chunks: int | Callable[[int], int] | None = None,
    result: int | str | None = None,
    requires: tuple[str, ...] = (),
) -> Callable[[_F], _F]:
    """Declare a generator of rounds. By default one chunk per rank, and in place (all_to_all: into Y)."""

    def declare(function: _F) -> _F:
        note = _rounds(function, collective, name=name, chunks=chunks, result=result, requires=requires)
        function.declared = note  # type: ignore[attr-defined]
        return function

    return declare


def composed(collective: str, *, name: str = "", requires: tuple[str, ...] = ()) -> Callable[[_F], _F]:
    """Declare a function that makes the table of other tables."""

    def declare(function: _F) -> _F:
        note = Declaration(collective, name or function.__name__, requires, rounds=False)
        function.declared = note  # type: ignore[attr-defined]
        return function

    return declare


def declaration(function: Callable[..., Any], collective: str = "") -> Declaration:
    """The declaration of a function; without one, the defaults for a generator of rounds of the given collective."""
    note = getattr(function, "declared", None)
    return note if isinstance(note, Declaration) else _rounds(function, collective)


def table(function: Callable[..., Any], ranks: int, root: int = 0, collective: str = "") -> Schedule:
    """The table of an algorithm for this number of ranks. Its name is the full one, such as "all_gather.ring".

    ranks: `Symmetric(p)` makes a symmetric table, with the rows of rank 0 only.
    """
    note = declaration(function, collective)
    rooted = note.collective in ROOTED
    if note.rounds:
        chunks = note.chunks(ranks) if callable(note.chunks) else note.chunks
        given = root if rooted else None
        if isinstance(ranks, Symmetric):
            if rooted or chunks != ranks:
                raise ArgumentError(f"{note.collective}.{note.name}: ranks do not do the same, or not on a chunk each")
            from ..proofs.large_proofs import trace_symmetric  # for large groups only

            schedule = trace_symmetric(function, ranks, note.collective, result=note.result)
        else:
            schedule = trace(function, ranks, chunks, note.collective, root=given, result=note.result)
    else:
        schedule = function(ranks, root) if rooted else function(ranks)
    name = f"{note.collective}.{note.name}"
    return schedule.but(collective=note.collective, name=name, root=root if rooted else 0)


def _rounds(
    function: Callable[..., Any],
    collective: str,
    *,
    name: str = "",
    chunks: int | Callable[[int], int] | None = None,
    result: int | str | None = None,
    requires: tuple[str, ...] = (),
) -> Declaration:
    title = name or getattr(function, "__name__", "algorithm")
    wanted = ("r", "p", "root") if collective in ROOTED else ("r", "p")
    code = getattr(function, "__code__", None)  # to look at a signature takes 50 times as long
    if code is None or code.co_kwonlyargcount or code.co_varnames[: code.co_argcount] != wanted:
        try:
            inspect.signature(function).bind(*wanted)
        except TypeError as error:
            said = f"{collective}.{title} must be a generator {title}({', '.join(wanted)}): {error}"
            raise ArgumentError(said) from None
    if result is None:
        result = Y if collective == "all_to_all" else X
    buffers = {X: X, Y: Y, "X": X, "Y": Y}
    if result not in buffers:
        raise ArgumentError(f"{collective}.{title}: the result is in buffer X or Y, not in {result!r}")
    cut = chunks if chunks is not None else _one_per_rank
    return Declaration(collective, title, requires, cut, buffers[result])


def _one_per_rank(ranks: int) -> int:
    return ranks
