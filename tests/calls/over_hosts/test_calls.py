"""Collectives over several hosts: their order, bits, groups and errors."""

import contextlib
import io
import time

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world

MANY = 20_011


def data(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, others on each rank: sums of them are exact in every dtype."""
    return ((torch.arange(count) * 7 + 3 * rank) % 11 - 5).to(dtype)


def everybody(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([data(rank, count, dtype) for rank in range(unisono.get_world_size())])


@pytest.mark.sampled(most=1)
@pytest.mark.ranks(hosts=["2x2:round_robin", "3+1"])
def test_values_are_combined_in_rank_order() -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    whole = everybody(100, torch.int64)
    tensor = whole[me].clone()
    big = torch.full((3,), 2**62, dtype=torch.int64) + me * size
    unisono.all_reduce(big, "avg")  # no partial sum fits into 64 bits
    assert big.tolist() == [2**62 + size * (size - 1) // 2] * 3
    first = unisono.make_op(lambda x, _: x, commutative=False)
    unisono.all_reduce(tensor, first)
    assert torch.equal(tensor, whole[0])


@pytest.mark.ranks(hosts=["2x2", "3+1"])
def test_repeated_sums_have_the_same_bits() -> None:
    """On all ranks, whoever comes first: their order is fixed."""
    torch.manual_seed(unisono.get_rank())
    vector = torch.randn(MANY)
    sums = [vector.clone() for _ in range(4)]
    for number, each in enumerate(sums):
        if unisono.get_rank() == number:
            time.sleep(0.01)
        unisono.all_reduce(each)
    everywhere = [torch.empty(MANY) for _ in range(unisono.get_world_size())]
    unisono.all_gather(everywhere, sums[0])
    assert all(torch.equal(sums[0], other) for other in (*sums, *everywhere))


@pytest.mark.ranks(hosts=["2x2", "3+1"])
def test_groups_inside_a_host_and_over_hosts() -> None:
    me, hosts = unisono.get_rank(), unisono.init().hosts
    host, seat = hosts.members[hosts.host_of(me)], hosts.seat(me)
    inside = unisono.split(hosts.host_of(me))
    assert inside.hosts.text == str(len(host))
    rail = [other[seat] for other in hosts.members if len(other) > seat]
    for group, members in (
        (inside, host), (unisono.split(seat), rail), (unisono.split(0, key=-me), range(4)),
        (unisono.new_group([1, 3]), [1, 3]),
    ):  # fmt: skip
        if group:
            tensor = torch.full((300,), 10.0**me)
            unisono.all_reduce(tensor, group=group)
            assert tensor[5].item() == sum(10.0**other for other in members)


@pytest.mark.ranks(hosts="2x2")
def test_groups_may_start_in_any_order() -> None:
    """Each has memory of its own on each host, which its ranks make within its first call."""
    me = unisono.get_rank()
    groups = [unisono.new_group() for _ in range(16)]
    tensors = [torch.full((300,), 10.0**me * (k + 1)) for k in range(16)]
    turns = sorted(range(16), key=lambda k: (k * (5, 7, 11, 13)[me]) % 16)
    works = [unisono.all_reduce(tensors[k], group=groups[k], async_op=True) for k in turns]
    for one in works:
        one.wait()
    assert [tensor[7].item() for tensor in tensors] == [1111.0 * (k + 1) for k in range(16)]


@pytest.mark.ranks(hosts="2x2")
def test_mismatch_names_ranks_and_writes_nothing() -> None:
    me, said = unisono.get_rank(), []
    tensor = torch.full((4 + (me == 3),), float(me))
    for _ in range(3):
        with pytest.raises(unisono.MismatchError) as raised:
            unisono.all_reduce(tensor)
        said.append(str(raised.value))
        assert set(tensor.tolist()) == {float(me)}
        with pytest.raises((unisono.MismatchError, unisono.DTypeError)):
            unisono.all_reduce(tensor if me else "no tensor")
        total = torch.ones(3)
        unisono.all_reduce(total)
        assert total.tolist() == [4.0] * 3
    assert all("rank 3" in words and "float32[5]" in words and "float32[4]" in words for words in said)


@in_new_world(2, config=unisono.Config(debug=1), hosts="2x1")
def test_each_call_over_hosts_has_its_debug_line() -> None:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        for _ in range(2):
            unisono.all_reduce(torch.ones(1000))
        unisono.broadcast(torch.ones(5, dtype=torch.float64), 1)
    lines = [line for line in said.getvalue().splitlines() if "of group" not in line]
    for line, call in zip(lines, ["all_reduce(float32[1000]"] * 2 + ["broadcast(float64[5]"], strict=True):
        assert line.startswith(f"[rank {unisono.get_rank()}] {call}")
        assert "over 2x1, staged, in place: " + ("40 B" if "broadcast" in call else "3.91 KiB") + " in " in line
        assert "takes about" in line.partition("; ")[2]


@pytest.mark.filterwarnings("ignore")  # torch warns of quantized tensors
@pytest.mark.ranks(hosts="2x2")
def test_two_scales_make_two_calls() -> None:
    me, values = unisono.get_rank(), torch.arange(6.0) + unisono.get_rank()
    group = unisono.new_group([0, 2])  # a rank of each host
    if not group:
        return
    for scales in ((0.5, 0.5), (0.5, 0.25), (0.25, 0.25), (0.5, 0.25), (0.5, 0.5)):
        tensor = torch.quantize_per_tensor(values, scales[me // 2], 0, torch.quint8)
        if len(set(scales)) > 1:
            with pytest.raises(unisono.MismatchError, match=r"(?s) \* 0\.25 \+ 0.* \* 0\.5 \+ 0"):
                unisono.broadcast(tensor, 1, group=group)
            assert torch.equal(tensor.dequantize(), values)
        else:
            unisono.broadcast(tensor, 1, group=group)
            assert torch.equal(tensor.dequantize(), torch.arange(6.0) + 2)
