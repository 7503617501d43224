"""`chaos`: which call it means, and what it refuses. Scenes of `tests/fuzz` let it happen at rows."""

from typing import Any

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world
from unisono.tools.testing import chaos


@pytest.mark.parametrize("fault", ["refuse", "mismatch"])
@pytest.mark.ranks(2)
def test_only_the_named_call_has_the_fault(fault: str) -> None:
    """Not the second all_reduce if it comes after the block."""
    given: dict[str, Any] = {"at": ("all_reduce", 2), fault: 0}
    ones, refuses = torch.ones(3), fault == "refuse" and unisono.get_rank() == 0
    with chaos(**given):
        unisono.all_reduce(ones)
    unisono.all_reduce(ones)
    with chaos(**given):
        for _ in range(2):
            unisono.barrier()
            unisono.broadcast(ones, 0)
        unisono.all_reduce(ones)
        with pytest.raises(unisono.ArgumentError if refuses else unisono.MismatchError):
            unisono.all_reduce(ones)
        unisono.all_reduce(ones)
    assert ones.tolist() == [16.0] * 3


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"at": ("all_reduce", 1)}, "got 0 faults, expected one of kill"),
        ({"at": ("all_reduce", 1), "kill": 0, "stop": 0}, "got 2 faults"),
        ({"at": ("all_reduce", 1), "kill": 7}, "got rank 7, expected 0 to 0"),
        ({"at": ("all_reduce", 1, "line", 3), "kill": 0}, r'expected a call such as \("all_reduce", 1\)'),
        ({"at": ("all_reduce", 1, "row", 3), "refuse": 0}, "cannot happen at a row"),
    ],
)
@pytest.mark.ranks(1)
def test_unknown_faults_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(unisono.ArgumentError, match=words), chaos(**wrong):
        pass


@in_new_world(1)
def test_row_beyond_the_program_is_refused() -> None:
    refused = pytest.raises(unisono.ArgumentError, match=r"row: got 99, but the program .* has \d+ rows")
    with refused, chaos(kill=0, at=("all_reduce", 1, "row", 99)):
        unisono.all_reduce(torch.ones(3))
