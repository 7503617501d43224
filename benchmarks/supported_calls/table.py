"""The outcomes as Markdown: rows are calls and ops, columns dtypes; what has equal outcomes is written once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .attempts import ALL_DTYPES, TRIES, Try
from .situations import SITUATIONS

_HEAD = """# What the calls take

Every call with every dtype and op, tried on three ranks with small whole numbers, some of them negative.

- **right**: the result is, to the last bit but for the sign of a zero. **wrong**: the call returned, and on some rank
  the result is not. Where the ranks disagree there is no right result, so that returning is wrong.
- **undefined**: the call returned, where nobody has said what would be right.
- **raises**: an exception. **aborts**: a process was killed. **hangs**: a rank waited for more than some seconds.
- **no call, no op**: there is none by this name. **no type, no buffer**: mpi4py finds no MPI type for the tensor, or
  cannot take its memory. bfloat16 and float8 it takes as single bytes, which MPI then combines as integers.

`custom` is a function of the user's own, x + y + 1. Whoever wants NaN, large numbers or other layouts tried, too: for
ours, `make matrix` does. Made by `make calls`."""


def markdown(machine: Mapping[str, str], notes: Sequence[str], outcomes: Mapping[str, Sequence[str]]) -> str:
    """The report: one table of dtypes per library, and one of SITUATIONS for all."""
    parts = [_HEAD, "\n".join(f"- {name}: {value}" for name, value in machine.items())]
    parts += [f"- {note}" for note in notes]
    for library, found in outcomes.items():
        parts += [f"## {library}", _dtype_table(dict(zip(TRIES, found, strict=True)))]
    parts += ["## Layouts, sizes, and ranks that disagree", _situation_table(outcomes)]
    return "\n\n".join(parts) + "\n"


def _dtype_table(found: Mapping[Try, str]) -> str:
    pairs = list(dict.fromkeys((one.call, one.op) for one in found if one.dtype))
    columns: dict[tuple[str, ...], list[str]] = {}
    for dtype in ALL_DTYPES:
        columns.setdefault(tuple(found[Try(call, dtype, op)] for call, op in pairs), []).append(dtype)
    rows: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for k, (call, op) in enumerate(pairs):
        cells = tuple(column[k] for column in columns)
        rows.setdefault(cells, {}).setdefault(call, []).append(op)
    lines = [["call", "op", *(", ".join(dtypes) for dtypes in columns.values())]]
    for cells, ops_of in rows.items():
        calls_of: dict[str, list[str]] = {}
        for call, ops in ops_of.items():
            calls_of.setdefault(", ".join(ops), []).append(call)
        lines += [[", ".join(calls), ops, *cells] for ops, calls in calls_of.items()]
    return _table(lines)


def _situation_table(outcomes: Mapping[str, Sequence[str]]) -> str:
    places = {situation: TRIES.index(Try(situation)) for situation in SITUATIONS}
    lines = [[situation, *(found[place] for found in outcomes.values())] for situation, place in places.items()]
    return _table([["call", *outcomes], *lines])


def _table(lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(lines[0])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [lines[0], rule, *lines[1:]])


def outcomes_in(text: str, library: str) -> dict[Try, str]:
    """The outcomes of a library, read back from its table of dtypes."""
    section = text.partition(f"\n## {library}\n")[2].partition("\n## ")[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    ]
    found = {}
    for calls, ops, *cells in lines[2:]:
        for dtypes, outcome in zip(lines[0][2:], cells, strict=True):
            found.update(
                {
                    Try(call, dtype, op): outcome
                    for call in calls.split(", ")
                    for op in ops.split(", ")
                    for dtype in dtypes.split(", ")
                }
            )
    return found
