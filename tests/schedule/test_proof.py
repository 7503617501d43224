"""The checker is checked: what it must refuse, by name and by mutants, and what it blames."""

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.schedule_oracles import is_right
from unisono.base.errors import AlgorithmError, ArgumentError
from unisono.schedule import ADD, COPY, JOIN, Fault, T, X, Y, send, trace
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.combine import seq, transpose
from unisono.schedule.proof import find_fault, prove
from unisono.schedule.table import DCHUNK, DST, OP, ROUND, SCHUNK, SRC, N, Schedule

pytestmark = pytest.mark.quick


def made(collective: str, p: int, chunks: int, *rounds, **more) -> Schedule:
    """A table of these rounds."""
    return trace(lambda r, p: rounds, p, chunks, collective, name="mine").replace(**more)


def row(round_=0, src=0, dst=1, sbuf=X, schunk=0, dbuf=X, dchunk=0, n=1, op=COPY) -> list[int]:
    return [round_, src, dst, sbuf, schunk, dbuf, dchunk, n, op]


SUM = (send(1, 0, 0, op=ADD), send(0, 1, 0))
SWAP = send([0, 1], [1, 0], 0)
JOINS, ADDS = send([0, 1], [1, 0], 0, op=JOIN), send([0, 1], [1, 0], 0, op=ADD)
FIRST = "^mine is not a correct broadcast: in round 0 rank 0 is sent rank 1's chunk 0, which holds nothing"
NOTHING = "in round 0 something is added to rank 1's chunk 0, which holds nothing"
NOT_OF_T = "is sent rank 0's chunk 0 of T, which holds nothing"
LAST = "rank 0 ends without rank 0's part of chunk 0; round 0 wrote it last"
MIXED = "in round 0 chunk 1 would be added to chunk 0 in rank 0's"
ADDED = "all_reduce", 2, 1, send(1, 0, 0, op=ADD)
BROKEN = [
    (made("broadcast", 2, 1, send(1, 0, 0)), FIRST),
    (made("all_gather", 2, 2, send(0, 1, 0, op=ADD)), NOTHING),
    (made("all_reduce", 2, 1, send(0, 1, 0, sbuf=T, dbuf=X)), NOT_OF_T),
    (made(*ADDED, send(0, 1, 0), send(1, 0, 0, op=ADD)), "in round 2 ranks 0, 1 would be counted twice in rank 0's"),
    (made("all_reduce", 2, 2, send(1, 0, 1, to=0, op=ADD)), MIXED),
    (made("broadcast", 3, 1, [send(0, [1, 2, 1], 0)]), "in round 0 rank 1's chunk 0 is written twice"),
    (made("all_reduce", 2, 1, [ADDED[-1], send(1, 0, 0)]), "in round 0 rank 0's chunk 0 is written twice"),
    (made("all_reduce", 2, 1, [SWAP]), LAST),
    (made("broadcast", 2, 1), "rank 1 ends without rank 0's part of chunk 0; no round writes it"),
    (made("scan", 2, 1, *SUM), "rank 0 ends with rank 1's part of chunk 0, which is not for it"),
    (made("barrier", 3, 1, JOINS), "rank 0 ends without rank 2's part of chunk 0"),
    (made("barrier", 2, 1, ADDS), r"barrier only copies and joins \(row 0\)"),
    (made("all_reduce", 2, 1, JOINS), "all_reduce only copies and adds"),
    (made("broadcast", 2, 1, send(0, 1, 0, op=3)), "broadcast only copies and adds"),
    *((made("broadcast", 2, 1, send(0, 1, 0), root=root), "expected a rank and a buffer") for root in (2, -1)),
    (made("broadcast", 2, 1, send(0, 1, 0), result=3), "expected a rank and a buffer"),
]
OUTSIDE = [
    ([row(1), row(0)], r"its round comes before the round of the row above \(row 1\)"),
    ([row(-1)], "its round comes before"),
    ([row(), row(src=3)], r"round 0 rank 3 sends chunk 0 to rank 1 .*, but there are only the ranks 0 to 2 \(row 1\)"),
    ([row(dst=-1)], "only the ranks 0 to 2"),
    ([row(schunk=2)], "only the chunks 0 to 1"),
    ([row(dchunk=-1)], "only the chunks 0 to 1"),
    ([row(n=0)], "a run has from 1 to 2 chunks"),
    ([row(n=3)], "a run has from 1 to 2 chunks"),
    ([row(sbuf=3)], "only the buffers X, Y and T"),
    ([row(dbuf=-1)], "only the buffers X, Y and T"),
]


OF_ROWS = [(Schedule(3, 2, np.array(rows), "broadcast", "mine"), message) for rows, message in OUTSIDE]


@pytest.mark.parametrize(("schedule", "message"), BROKEN + OF_ROWS)
def test_broken_tables_are_refused_with_a_reason(schedule: Schedule, message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        prove(schedule)


FORWARD = send(2, 1, 0, op=ADD), send(1, 0, 0, op=ADD)
SKIPPING = send(2, 0, 0, op=ADD), send(1, 0, 0, op=ADD)
ROTATED = send(0, 2, 0, op=ADD), send(2, 1, 0, op=ADD)
AT_ONCE = [send(3, 1, 0, op=ADD), send(0, 1, 0, op=ADD), send(2, 1, 0, op=ADD)]
OUT_OF_PLACE = [send(1, 0, 0, dbuf=Y), send(0, 0, 0, dbuf=Y, op=ADD)]
CANNOT = "reduce for ops that do not commute: in round 0 rank 2 cannot follow rank 0 in rank 0's chunk"
ORDERS = [
    ("neighbours", made("reduce", 3, 1, *FORWARD), ""),
    ("skips a rank: refused", made("reduce", 3, 1, *SKIPPING), CANNOT),
    ("begins at the root: refused", made("reduce", 3, 1, *ROTATED, root=1), "for ops that do not commute"),
    ("rows in another order", made("reduce", 4, 1, AT_ONCE, root=1), ""),
    ("out of place", made("reduce", 2, 1, OUT_OF_PLACE, result=Y), ""),
]


@pytest.mark.parametrize(("case", "table", "said"), ORDERS)
def test_neighbours_are_combined_in_rank_order(case: str, table: Schedule, said: str) -> None:
    prove(table)
    with pytest.raises(AlgorithmError, match=said) if said else nullcontext():
        prove(table, ordered=True)


def test_one_pass_and_two_passes_differ_in_bits() -> None:
    """(a + b) + c rounded once is not (a + b) rounded, + c rounded."""
    first = [send([1, 2], 0, 0, op=ADD), send(0, 1, 0, op=ADD)]
    assert prove(made("all_reduce", 3, 1, first, send(2, 1, 0, op=ADD), send(0, 2, 0))).same_bits is False


def mutants(schedule: Schedule, rng: np.random.Generator, count: int):
    """The table with one row changed, deleted, doubled or moved to another round."""
    p, C = schedule.ranks, schedule.chunks
    changes = [([SRC], p), ([DST], p), ([SCHUNK, DCHUNK], C), ([SCHUNK], C), ([DCHUNK], C), ([OP], 3), ([N], C)]
    for _ in range(count if len(schedule.rows) else 0):
        rows, i = schedule.rows.copy(), rng.integers(len(schedule.rows))
        change = rng.integers(len(changes) + 3)
        if change < len(changes):
            columns, most = changes[change]
            rows[i, columns] = rng.integers(most) + (columns == [N])
        elif change == len(changes):
            rows = np.delete(rows, i, 0)
        elif change == len(changes) + 1:
            rows = np.insert(rows, i, rows[i], 0)
        else:
            rows[i, ROUND] = rng.integers(schedule.rounds)
            rows = rows[np.argsort(rows[:, ROUND], kind="stable")]
        if not np.array_equal(rows, schedule.rows):
            yield schedule.replace(rows=rows)


def verdict(schedule: Schedule, **more: object) -> str:
    try:
        prove(schedule, **more)
    except (AlgorithmError, ArgumentError) as error:
        return type(error).__name__
    return "accepted"


def test_wrong_mutants_are_refused() -> None:
    """By sets of ranks, and by sums of random numbers in their place."""
    rng, seen = np.random.default_rng(1), Counter[str]()
    for algorithm in CATALOGUE.values():
        for p in filter(algorithm.allows, (2, 3, 4, 6, 7, 8)):
            for mutant in mutants(algorithm.schedule(p, p // 3), rng, 20):
                by_sets, by_sums = verdict(mutant), verdict(mutant, exact=False)
                seen[by_sets] += 1
                if "accepted" in (by_sets, by_sums):
                    assert is_right(mutant, 101), (algorithm.full_name, p, mutant.rows.tolist())
                if by_sums != "accepted":
                    assert by_sets == by_sums
    assert seen["AlgorithmError"] > 4000
    assert seen["AlgorithmError"] > 8 * seen["accepted"] > 80
    assert not seen["ArgumentError"]


HERE = Path(__file__)


def greedy(r: Any, p: int) -> Iterator[Any]:
    yield send(r, (r + 1) % p, 0, op=ADD)
    yield send(r, (r + 1) % p, 0, op=ADD)  # greedy


def overwrites(r: Any, p: int) -> Iterator[Any]:
    yield send(1, 0, 0, op=ADD)
    yield send(1, 0, 0)  # overwrites
    yield send(0, 1, 0)


def half(r: Any, p: int, root: int) -> Iterator[Any]:
    yield send(2, 1, 0)  # half
    yield send(0, 2, 0)


def line_of(word: str) -> str:
    lines = HERE.read_text().splitlines()
    return f"{HERE.name}:{next(k for k, line in enumerate(lines, 1) if line.endswith(f'  # {word}'))}"


GOOD = trace(lambda r, p: [send(0, [1, 2], 0)], 3, 1, "broadcast")
COMPOSED = seq(GOOD.replace(rows=GOOD.rows[:1]), trace(half, 3, 1, "broadcast", root=0))


TWICE, LATER = "rank 0 would be counted twice in rank 1's chunk 0", "chunk 0; round 1 wrote it last"
BLAMED = [
    (trace(greedy, 3, 1, "all_reduce"), 1, (1, X, 0), TWICE, "greedy"),
    (trace(overwrites, 2, 1, "all_reduce"), None, (0, X, 0), LATER, "overwrites"),
    (COMPOSED, 1, (1, X, 0), "rank 1 is sent rank 2's chunk 0, which holds nothing", "half"),
]


@pytest.mark.parametrize(("schedule", "round_", "slot", "reason", "word"), BLAMED)
def test_fault_blames_the_line_that_wrote(
    schedule: Schedule, round_: int | None, slot: tuple[int, int, int], reason: str, word: str
) -> None:
    found = find_fault(schedule)
    assert (found.round, found.slot) == (round_, slot)
    assert found.reason.endswith(reason)
    assert found.line.endswith(line_of(word))
    assert str(found).endswith(f" is not a correct {schedule.collective}: {found.reason} ({found.line})")


def test_unwritten_result_blames_no_line() -> None:
    reason = "rank 1 ends without rank 0's part of chunk 0; no round writes it"
    assert find_fault(made(*ADDED)) == Fault("mine", "all_reduce", reason, None, (1, X, 0))


def test_transposed_table_has_the_lines_reversed() -> None:
    assert transpose(COMPOSED).yields == COMPOSED.yields[::-1]


def test_unknown_lines_move_no_others() -> None:
    whole = seq(COMPOSED.replace(yields=()), COMPOSED)
    assert whole.yields == (*[None] * COMPOSED.rounds, *COMPOSED.yields)
