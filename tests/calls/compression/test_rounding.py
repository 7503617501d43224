"""How values become bytes, and values again."""

from __future__ import annotations

import pytest
import torch

from unisono.calls.compression.rounding import BLOCK, ROUNDINGS

BLOCKS = 3


def values(rows: int) -> torch.Tensor:
    """Rows of blocks of very different sizes."""
    generator = torch.Generator().manual_seed(rows)
    scales = torch.logspace(-3, 3, rows * BLOCKS).view(rows, BLOCKS, 1)
    return (torch.randn(rows, BLOCKS, BLOCK, generator=generator) * scales).flatten(1)


@pytest.mark.parametrize("rows", [1, 4])
def test_int8_is_right_to_half_a_step_of_its_block(rows: int) -> None:
    int8, exact = ROUNDINGS["int8"], values(rows)
    packed = int8.pack(exact)
    assert packed.dtype is torch.uint8
    assert packed.shape == (rows, int8.nbytes(BLOCKS))
    assert int8.nbytes(BLOCKS) == BLOCKS * (BLOCK + 4)
    steps = exact.view(rows, BLOCKS, BLOCK).abs().amax(2, keepdim=True) / 127
    errors = (int8.unpack(packed) - exact).view(rows, BLOCKS, BLOCK).abs()
    assert (errors <= steps * 0.5001).all()
    assert errors.count_nonzero() > 0.9 * errors.numel()


@pytest.mark.parametrize("rows", [1, 4])
def test_bf16_has_eight_bits(rows: int) -> None:
    bf16, exact = ROUNDINGS["bf16"], values(rows)
    packed = bf16.pack(exact)
    assert packed.shape == (rows, bf16.nbytes(BLOCKS)) == (rows, BLOCKS * BLOCK * 2)
    assert torch.equal(bf16.unpack(packed), exact.bfloat16().float())


@pytest.mark.parametrize("name", ROUNDINGS)
def test_what_is_representable_comes_back(name: str) -> None:
    """Also zeros, and the least numbers that there are."""
    exact = torch.zeros(2, 2 * BLOCK)
    exact[0, :BLOCK] = torch.arange(BLOCK) % 255 - 127
    exact[1, BLOCK] = torch.finfo(torch.float32).smallest_normal * 127
    rounding = ROUNDINGS[name]
    assert torch.equal(rounding.unpack(rounding.pack(exact)), exact)


@pytest.mark.parametrize("name", ROUNDINGS)
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_what_is_no_number_does_not_become_one(name: str, bad: float) -> None:
    exact = values(2)
    exact[1, BLOCK + 7] = bad
    rounding = ROUNDINGS[name]
    got = rounding.unpack(rounding.pack(exact))
    assert not got[1, BLOCK + 7].isfinite()
    assert got[0].isfinite().all()
    assert got[1, :BLOCK].isfinite().all()
