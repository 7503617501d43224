"""What each library does with every call, dtype and op: `python -m benchmarks.supported_calls`.

Outcomes are tables: rows are calls and ops, columns dtypes; what has equal outcomes is written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from ..mpi import find
from ..reports import GLOO, OPEN_MPI, OURS, Output, describe, hand_in, table
from .attempts import ALL_DTYPES, RANKS, SITUATIONS, TRIES, Try
from .libraries import try_mpi, try_torch_like

_HEAD = """# What the calls take

Every call with every dtype and op, tried on three ranks with small whole numbers, some of them negative.

- **right**: the result is right to the last bit, except for the sign of a zero. **wrong**: the call returned, and on
  some rank the result is not right. If the ranks disagree, no result is right, so a return is wrong.
- **undefined**: the call returned, and no right result is defined.
- **raises**: an exception. **aborts**: a process was killed. **hangs**: a rank waited for more than some seconds.
- **no call, no op**: the library has none by this name. **no type, no buffer**: mpi4py finds no MPI type for the
  tensor, or cannot take its memory. It takes bfloat16 and float8 as single bytes, which MPI then combines as integers.

`custom` is a user's function, x + y + 1. `make matrix` tries our calls with NaN, large numbers and other layouts, too.
Made by `make calls`."""


def markdown(machine: Mapping[str, str], notes: Sequence[str], outcomes: Mapping[str, Sequence[str]]) -> list[str]:
    """The report: one table of dtypes per library, and one of SITUATIONS for all."""
    lines = [_HEAD, "", *(f"- {name}: {value}" for name, value in machine.items()), *(f"- {note}" for note in notes)]
    for library, found in outcomes.items():
        lines += ["", f"## {library}", *dtype_table(dict(zip(TRIES, found, strict=True)))]
    lines += ["", "## Layouts, sizes, and ranks that disagree"]
    places = {situation: TRIES.index(Try(situation)) for situation in SITUATIONS}
    rows = ([situation, *(found[place] for found in outcomes.values())] for situation, place in places.items())
    return lines + table(["call", *outcomes], rows)


def dtype_table(found: Mapping[Try, str]) -> list[str]:
    """A table of the outcomes of all calls with an op and a dtype."""
    pairs = list(dict.fromkeys((one.call, one.op) for one in found if one.dtype))
    columns: dict[tuple[str, ...], list[str]] = {}
    for dtype in ALL_DTYPES:
        columns.setdefault(tuple(found[Try(call, dtype, op)] for call, op in pairs), []).append(dtype)
    rows: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for k, (call, op) in enumerate(pairs):
        cells = tuple(column[k] for column in columns)
        rows.setdefault(cells, {}).setdefault(call, []).append(op)
    lines: list[list[str]] = []
    for cells, ops_of in rows.items():
        calls_of: dict[str, list[str]] = {}
        for call, ops in ops_of.items():
            calls_of.setdefault(", ".join(ops), []).append(call)
        lines += [[", ".join(calls), ops, *cells] for ops, calls in calls_of.items()]
    return table(["call", "op", *(", ".join(dtypes) for dtypes in columns.values())], lines)


def calls(
    *,
    mpi: Annotated[bool, typer.Option(help="Try Open MPI too, where installed.")] = True,
    output: Output = None,
) -> None:
    """Try every call with every dtype and op on three ranks: ours, Gloo and MPI. Takes some minutes."""
    outcomes = {name: try_torch_like(name, TRIES) for name in (OURS, GLOO)}
    notes = []
    found = find(OPEN_MPI, RANKS) if mpi else "not asked for"
    if isinstance(found, str):
        notes.append(f"Open MPI: {found}")
    else:
        outcomes[OPEN_MPI] = try_mpi(found, TRIES)
    hand_in(markdown(describe(), notes, outcomes), output)


if __name__ == "__main__":
    typer.run(calls)
