"""Tables on data, in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from unisono.base.errors import ArgumentError
from unisono.schedule import ADD, T, X, Y, even_bounds, execute, send, trace
from unisono.schedule.algorithms import CATALOGUE

pytestmark = pytest.mark.quick


def test_even_bounds() -> None:
    assert even_bounds(10, 4).tolist() == [0, 2, 5, 7, 10]
    assert even_bounds(2, 4).tolist() == [0, 0, 1, 1, 2]
    assert even_bounds(0, 3).tolist() == [0, 0, 0, 0]


def test_buffers_come_back_and_inputs_stay() -> None:
    inputs = np.array([[1, 2], [30, 40]])
    buffers = execute(CATALOGUE["all_to_all.pairwise"].schedule(2), inputs)
    assert [vector.tolist() for vector in buffers[Y]] == [[1, 30], [2, 40]]
    assert [vector.tolist() for vector in buffers[X]] == [[1, 2], [30, 40]]
    assert [vector.tolist() for vector in buffers[T]] == [[0, 0], [0, 0]]
    execute(CATALOGUE["all_reduce.ring"].schedule(2), inputs)
    assert inputs.tolist() == [[1, 2], [30, 40]]


def test_inputs_are_combined_in_rank_order() -> None:
    """Rank 1 gets the others' numbers in another order, and its own is in the middle."""

    def to_the_middle(r, p):
        yield send([2, 0], 1, 0, op=ADD)

    table = trace(to_the_middle, 3, 1, "reduce")
    big = np.float32(2.0**24)
    out = execute(table, [np.array([x], np.float32) for x in (big, 1, 1)])[X][1]
    assert out == (big + np.float32(1)) + np.float32(1) == big
    letters = [np.array([letter], object) for letter in "abc"]
    assert execute(table, letters)[X][1].tolist() == ["abc"]


def test_any_operation() -> None:
    schedule = CATALOGUE["all_reduce.recursive_doubling"].schedule(5)
    data = np.array([[3, -1], [1, 4], [-5, 9], [2, 6], [5, 3]])
    for combine, want in ((np.minimum, [-5, -1]), (np.multiply, [-150, -648])):
        assert all(vector.tolist() == want for vector in execute(schedule, data, combine=combine)[X])


@pytest.mark.parametrize("inputs", [[[1], [2]], [[[1]], [[2]], [[3]]]])
def test_one_vector_per_rank(inputs) -> None:
    with pytest.raises(ArgumentError, match=r"all_reduce\.ring needs 3 vectors, one per rank"):
        execute(CATALOGUE["all_reduce.ring"].schedule(3), inputs)
