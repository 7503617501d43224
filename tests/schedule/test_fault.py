"""A fault says what is wrong first, then which `yield` is to blame; the same is there as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unisono.base.errors import AlgorithmError
from unisono.schedule import ADD, Fault, Schedule, X, find_fault, prove, send, seq, trace, transpose

pytestmark = pytest.mark.quick

HERE = Path(__file__)


def greedy(r: Any, p: int) -> Iterator[Any]:
    yield send(r, (r + 1) % p, 0, op=ADD)
    yield send(r, (r + 1) % p, 0, op=ADD)  # greedy


def overwrites(r: Any, p: int) -> Iterator[Any]:
    yield send(1, 0, 0, op=ADD)
    yield send(1, 0, 0)  # overwrites
    yield send(0, 1, 0)


def forgets(r: Any, p: int) -> Iterator[Any]:
    yield send(1, 0, 0, op=ADD)


def half(r: Any, p: int, root: int) -> Iterator[Any]:
    yield send(2, 1, 0)  # half
    yield send(0, 2, 0)


def made(algorithm: Callable[..., Any], ranks: int = 2) -> Schedule:
    return trace(algorithm, ranks, 1, "all_reduce")


def line_of(word: str) -> str:
    lines = HERE.read_text().splitlines()
    return f"{HERE.name}:{next(k for k, line in enumerate(lines, 1) if line.endswith(f'  # {word}'))}"


def test_a_contribution_that_is_counted_twice() -> None:
    found = find_fault(made(greedy, 3))
    assert found is not None
    assert (found.round, found.slot) == (1, (1, X, 0))
    assert found.line.endswith(line_of("greedy"))
    said = "greedy is no all_reduce: in round 1 rank 0 would be counted twice in rank 1's chunk 0"
    assert str(found) == f"{said} ({found.line})"


def test_a_result_that_is_overwritten_blames_its_last_writer() -> None:
    found = find_fault(made(overwrites))
    assert found is not None
    assert (found.round, found.slot) == (None, (0, X, 0))
    assert found.reason == "rank 0 ends without rank 0's part of chunk 0; the last to write it is round 1"
    assert found.line.endswith(line_of("overwrites"))


def test_a_result_that_nobody_writes_blames_no_line() -> None:
    found = find_fault(made(forgets))
    assert found == Fault(
        "forgets", "all_reduce", "rank 1 ends without rank 0's part of chunk 0; no round writes it", None, (1, X, 0)
    )


def test_the_line_is_known_in_tables_made_of_tables() -> None:
    part = trace(half, 3, 1, "broadcast", root=0)
    good = trace(lambda r, p: [send(0, [1, 2], 0)], 3, 1, "broadcast")
    found = find_fault(seq(replace(good, rows=good.rows[:1]), part))
    assert found is not None
    assert found.round == 1
    assert found.line.endswith(line_of("half"))
    assert transpose(part).yields == part.yields[::-1]


def test_a_table_without_fault_has_none() -> None:
    assert find_fault(trace(lambda r, p: [send(0, 1, 0)], 2, 1, "broadcast")) is None


def test_the_error_carries_the_fault() -> None:
    with pytest.raises(AlgorithmError) as error:
        prove(made(greedy, 3))
    assert error.value.args == (find_fault(made(greedy, 3)),)
