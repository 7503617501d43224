"""Every case of the matrix, and tensors of more than 2^31 elements: with MATRIX=full, as in `make nightly`."""

import os
from pathlib import Path

import pytest
import torch

import unisono
from tests.matrix.test_sample import SEED
from tests.support.matrix import FORMS, every
from tests.support.matrix_driver import run_cases

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("MATRIX") != "full", reason="MATRIX=full runs it"),
]


def run_every(form: str) -> tuple[int, int, list[str]]:
    return run_cases(every(form, SEED), most=3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8])
def test_every_case(ranks: int, form: str) -> None:
    """Sizes, roots and values are drawn from the seed."""
    with unisono.World(ranks, timeout_s=500) as world:
        for made, wrong, failures in world.run(run_every, form):
            assert made > 100
            assert not wrong, f"{wrong} of {made} are wrong with MATRIX_SEED={SEED}:\n" + "\n".join(failures)


COUNT = 2**31 + 17
MARKS = (0, 1, 12_345_678, 2**30 + 1, 2**31 - 1, 2**31, 2**31 + 1, COUNT - 1)
NEEDED = 8 << 30


def available() -> int:
    """Bytes of memory that processes can still take."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def filled(dtype: torch.dtype, most: int, mark: int) -> torch.Tensor:
    """`most` everywhere, but for the marks, each with a value of its own."""
    tensor = torch.full((COUNT,), most, dtype=dtype)
    for k, place in enumerate(MARKS):
        tensor[place] = mark + k
    return tensor


def check(tensor: torch.Tensor, most: int, marks: list[int]) -> None:
    assert [int(tensor[place]) for place in MARKS] == marks
    for place in MARKS:
        tensor[place] = most
    for part in torch.split(tensor, 2**26):
        assert bool((part == most).all())


def large_calls() -> None:
    rank = unisono.get_rank()
    tensor = filled(torch.int8, rank - 100, 10 * rank)
    unisono.broadcast(tensor, 1)
    check(tensor, -99, [10 + k for k in range(len(MARKS))])
    del tensor
    tensor = filled(torch.uint8, 3 + 200 * rank, 20 + 80 * rank)
    unisono.all_reduce(tensor)
    check(tensor, 206, [120 + 2 * k for k in range(len(MARKS))])


@pytest.mark.skipif(available() < NEEDED, reason="needs 8 GiB of free memory")
def test_more_than_two_gibibytes() -> None:
    with unisono.World(2, timeout_s=500) as world:
        world.run(large_calls)
