"""`on_ranks` runs a test on all ranks of each world, and fails where a rank does."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest

import unisono
from tests.support.on_ranks import on_ranks
from tests.support.worlds import Worlds


@pytest.mark.parametrize("word", ["one", "two"])
@on_ranks(1, 2)
def test_each_rank_has_fixtures_and_parameters(ranks: int, word: str, tmp_path: Path) -> None:
    assert unisono.get_world_size() == ranks
    (tmp_path / f"{word} {unisono.get_rank()}").touch()
    unisono.barrier()
    assert {path.name for path in tmp_path.iterdir()} == {f"{word} {rank}" for rank in range(ranks)}


def test_a_rank_that_fails_fails_the_test(worlds: Worlds) -> None:
    @on_ranks(2)
    def test() -> None:
        assert unisono.get_rank() == 0, "not all ranks are rank 0"

    assert set(signature(test).parameters) == {"worlds"}
    with pytest.raises(unisono.RankFailed, match=r"rank 1 failed(.|\n)*not all ranks are rank 0"):
        test(worlds=worlds)


def test_shapes_of_hosts_and_numbers_of_ranks_have_fixtures_of_their_own() -> None:
    def test() -> None:
        """Do nothing."""

    for worlds, names in (((2,), {"worlds"}), (("2x1",), {"on_hosts"}), ((2, "2x1"), {"worlds", "on_hosts", "ranks"})):
        assert set(signature(on_ranks(*worlds)(test)).parameters) == names
