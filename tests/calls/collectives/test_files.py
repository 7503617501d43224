"""A file of another program as the algorithm of a call: it runs on tensors of all sizes, or is refused."""

from pathlib import Path

import pytest
import torch

import unisono
from tests.schedule.exchange.files import FILES
from unisono.base.errors import ArgumentError
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.exchange import write


def put(folder: Path, name: str) -> str:
    path = folder / f"{name} on {unisono.get_rank()}.xml"
    path.write_text(FILES[name])
    return str(path)


@pytest.mark.ranks(4)
def test_sums_of_any_size(tmp_path: Path) -> None:
    me, ranks = unisono.get_rank(), unisono.get_world_size()
    for name in ("fused ring of 4", "all pairs of 4, 4 chunks each"):
        path = put(tmp_path, name)
        for size in (1, 3, 16, 1001, 100_003):
            tensor = torch.arange(size) + 7 * me
            unisono.all_reduce(tensor, algorithm=path)
            assert torch.equal(tensor, ranks * torch.arange(size) + 7 * sum(range(ranks))), (name, size)


@pytest.mark.ranks(4)
def test_blocks_and_hosts(tmp_path: Path) -> None:
    me = unisono.get_rank()
    tensor, out = torch.arange(12) + 100 * me, torch.empty(12, dtype=torch.int64)
    unisono.all_to_all_single(out, tensor, algorithm=put(tmp_path, "all_to_all of 2x2"))
    assert out.tolist() == [100 * q + 3 * me + k for q in range(4) for k in range(3)]
    with pytest.raises(ArgumentError, match=r"all_to_all.* is an algorithm for all_to_all, .* all_reduce"):
        unisono.all_reduce(tensor, algorithm=put(tmp_path, "all_to_all of 2x2"))


@pytest.mark.ranks(3)
def test_other_numbers_of_ranks_are_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "fused ring of 4")
    with pytest.raises(ArgumentError, match=r"\d\.xml is a table for 4 ranks and root 0, expected one for 3 ranks"):
        unisono.all_reduce(torch.zeros(3), algorithm=path)
    with pytest.raises(ArgumentError, match=r"cannot read .*no\.xml: No such file"):
        unisono.all_reduce(torch.zeros(3), algorithm=f"{tmp_path}/no.xml")


@pytest.mark.ranks(4)
def test_bits_are_those_of_the_table(tmp_path: Path) -> None:
    """An exported algorithm gives the same bits when it is read from its file."""
    for name in ("one_shot", "ring", "rabenseifner"):
        path = f"{tmp_path}/{name}.xml"
        write(CATALOGUE[f"all_reduce.{name}"].schedule(4), path, "msccl")
        one = torch.rand(1000, generator=torch.Generator().manual_seed(unisono.get_rank()))
        two = one.clone()
        unisono.all_reduce(one, algorithm=name)
        unisono.all_reduce(two, algorithm=path)
        assert torch.equal(one, two)
