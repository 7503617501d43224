"""Every case of the matrix, and tensors of more than 2^31 elements: with MATRIX=full, as in `make nightly`."""

import os

import psutil
import pytest
import torch

import unisono
from tests.fuzz.api import Native
from tests.fuzz.programs import Call
from tests.fuzz.ranks import Player
from tests.support.matrix import FORMS, every

SEED = int(os.environ.get("MATRIX_SEED", "20"))

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("MATRIX") != "full", reason="MATRIX=full runs it"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8])
def test_every_case(ranks: int, form: str) -> None:
    """Sizes, roots and values are drawn from the seed."""

    def play_every() -> list[str]:
        player = Player(api := Native(), api.world)
        for case in every(form, SEED):
            player.play([Call(case)])
        return player.failures

    for failures in unisono.run(play_every, ranks, timeout_s=500):
        assert not failures, f"{len(failures)} are wrong with MATRIX_SEED={SEED}:\n" + "\n".join(failures[:3])


MARKS = (0, 1, 12_345_678, 2**30 + 1, 2**31 - 1, 2**31, 2**31 + 1, 2**31 + 16)
NEEDED = 10 << 30


def filled(dtype: torch.dtype, most: int, mark: int) -> torch.Tensor:
    """More than 2^31 elements, `most` everywhere, but for the marks, each with a value of its own."""
    tensor = torch.full((MARKS[-1] + 1,), most, dtype=dtype)
    for k, place in enumerate(MARKS):
        tensor[place] = mark + k
    return tensor


def large_calls() -> None:
    rank = unisono.get_rank()
    tensor = filled(torch.int8, rank - 100, 10 * rank)
    unisono.broadcast(tensor, 1)
    assert torch.equal(tensor, filled(torch.int8, -99, 10))
    del tensor
    tensor = filled(torch.uint8, 3 + 200 * rank, 20 + 80 * rank)
    unisono.all_reduce(tensor)
    for k, place in enumerate(MARKS):
        assert tensor[place] == 120 + 2 * k
        tensor[place] = 206
    assert all(bool((part == 206).all()) for part in torch.split(tensor, 2**26))


@pytest.mark.skipif(psutil.virtual_memory().available < NEEDED, reason="needs 10 GiB of free memory")
def test_more_than_two_gibibytes() -> None:
    unisono.run(large_calls, 2, timeout_s=500)
