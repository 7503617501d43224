"""What is shipped for users' tests: it must itself be able to fail, and say where."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unisono
from unisono import ArgumentError, RankFailed, WaitTimeout
from unisono import testing as oracle
from unisono.tools.testing import ranks


@ranks(1, 2, 3)
def test_a_function_runs_on_every_rank_of_every_size(tmp_path: Path) -> None:
    tensor = torch.tensor([1.0])
    unisono.all_reduce(tensor)
    assert tensor.item() == unisono.get_world_size()
    (tmp_path / f"{unisono.get_world_size()} {unisono.get_rank()}").touch(exist_ok=False)


def test_all_sizes_run_in_order(tmp_path: Path) -> None:
    test_a_function_runs_on_every_rank_of_every_size(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1 0", "2 0", "2 1", "3 0", "3 1", "3 2"]


def test_what_fails_on_one_rank_fails() -> None:
    @ranks(1, 3)
    def wrong_on_the_last() -> None:
        assert unisono.get_rank() < 2, "no third rank"

    with pytest.raises(RankFailed, match="no third rank") as caught:
        wrong_on_the_last()
    assert caught.value.rank == 2


def test_what_hangs_ends() -> None:
    @ranks(2, timeout_s=0.5)
    def never_ends() -> None:
        while unisono.get_rank() == 1:
            pass

    with pytest.raises(WaitTimeout, match="never_ends"):
        never_ends()


@pytest.mark.parametrize("sizes", [(), (0,), (2, -1)])
def test_sizes_are_sensible(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="at least 1"):
        ranks(*sizes)


def test_the_oracle_by_hand() -> None:
    """Two ranks, worked out on paper."""
    a, b = torch.tensor([1, 2, 3, 4]), torch.tensor([10, 20, 30, 50])

    def lists(results: list[torch.Tensor]) -> list[list[int]]:
        return [result.tolist() for result in results]

    assert lists(oracle.all_reduce([a, b])) == [[11, 22, 33, 54]] * 2
    assert lists(oracle.all_reduce([a, b], "avg")) == [[5, 11, 16, 27]] * 2
    assert lists(oracle.all_reduce([a, -b], "avg")) == [[-4, -9, -13, -23]] * 2
    assert lists(oracle.all_reduce([a, b], "product")) == [[10, 40, 90, 200]] * 2
    assert lists(oracle.all_reduce([a, b], "min")) == [[1, 2, 3, 4]] * 2
    assert lists(oracle.reduce([a, b], 1, "max")) == [[1, 2, 3, 4], [10, 20, 30, 50]]
    assert lists(oracle.reduce([a, b], 0)) == [[11, 22, 33, 54], [10, 20, 30, 50]]
    assert lists(oracle.broadcast([a, b], 1)) == [[10, 20, 30, 50]] * 2
    assert lists(oracle.scatter([None, b], 1)) == [[10, 20], [30, 50]]
    assert lists(oracle.all_gather([a, b])) == [[1, 2, 3, 4, 10, 20, 30, 50]] * 2
    assert lists(oracle.reduce_scatter([a, b])) == [[11, 22], [33, 54]]
    assert lists(oracle.all_to_all([a, b])) == [[1, 2, 10, 20], [3, 4, 30, 50]]
    at_root, elsewhere = oracle.gather([a, b], 0)
    assert at_root is not None
    assert at_root.tolist() == [1, 2, 3, 4, 10, 20, 30, 50]
    assert elsewhere is None


def test_the_oracle_rounds_once_and_refuses_what_is_no_op() -> None:
    small = torch.tensor([2.0**-9], dtype=torch.bfloat16)
    total = oracle.combine([torch.ones(1, dtype=torch.bfloat16), *[small] * 8])
    assert total.item() == 1 + 2.0**-6
    with pytest.raises(ArgumentError, match="'xor'"):
        oracle.combine([small, small], "xor")
    with pytest.raises(ArgumentError, match="rank 0 is src"):
        oracle.scatter([None, small], 0)
