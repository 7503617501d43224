"""Every collective over several hosts, against what its inputs must give; and calls of several threads."""

import contextlib
import io
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import unisono
from tests.support.worlds import OnHosts

MANY = 20_011


def data(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, others on each rank: sums of them are exact in every dtype."""
    return ((torch.arange(count) * 7 + 3 * rank) % 11 - 5).to(dtype)


def everybody(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([data(rank, count, dtype) for rank in range(unisono.get_world_size())])


@pytest.mark.sampled(most=1)
@pytest.mark.ranks(hosts=["2x2:round_robin", "3+1"])
def test_in_rank_order() -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    whole = everybody(100, torch.int64)
    tensor = whole[me].clone()
    big = torch.full((3,), 2**62, dtype=torch.int64) + me * size
    unisono.all_reduce(big, "avg")  # no partial sum fits into 64 bits
    assert big.tolist() == [2**62 + size * (size - 1) // 2] * 3
    first = unisono.make_op(lambda x, _: x, commutative=False)
    unisono.all_reduce(tensor, first)
    assert torch.equal(tensor, whole[0])


@pytest.mark.ranks(hosts="2x2")
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


@pytest.mark.parametrize("shape", ["2x2", "3+1"])
def test_groups_inside_a_host_and_over_hosts(on_hosts: OnHosts, shape: str) -> None:
    def work() -> list[tuple[str, float]]:
        me, found = unisono.get_rank(), []
        hosts = unisono.init().hosts
        inside = unisono.split(hosts.host_of(me))
        across = unisono.split(hosts.seat(me))
        reverse = unisono.split(0, key=-me)
        for group in (inside, across, reverse, unisono.new_group([1, 3])):
            if group:
                tensor = torch.full((300,), 10.0**me)
                unisono.all_reduce(tensor, group=group)
                found.append((group.hosts.text, tensor[5].item()))
        return found

    members = {"2x2": [[0, 1], [2, 3]], "3+1": [[0, 1, 2], [3]]}[shape]
    results = on_hosts(shape).run(work)
    for host in members:
        for seat, rank in enumerate(host):
            inside = (str(len(host)), sum(10.0**other for other in host))
            rail = [other[seat] for other in members if len(other) > seat]
            assert results[rank][0] == inside
            assert results[rank][1][1] == sum(10.0**other for other in rail)
            assert results[rank][2][1] == 1111.0
    assert results[3][3][1] == results[1][3][1] == 1010.0


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


def test_results_have_the_same_bits_everywhere(on_hosts: OnHosts) -> None:
    def work() -> bytes:
        torch.manual_seed(unisono.get_rank())
        parts = []
        for count in (3, 1000, 200_000):
            tensor = torch.randn(count)
            unisono.all_reduce(tensor)
            parts.append(tensor.numpy().tobytes())
        return b"".join(parts)

    results = on_hosts("3+1").run(work) + on_hosts("3+1").run(work)
    assert len(set(results)) == 1


def test_each_call_over_hosts_has_its_debug_line() -> None:
    def work() -> list[str]:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            for _ in range(2):
                unisono.all_reduce(torch.ones(1000))
            unisono.broadcast(torch.ones(5, dtype=torch.float64), 1)
        return [line for line in said.getvalue().splitlines() if "of group" not in line]

    with unisono.World(2, config=unisono.Config(debug=1), hosts="2x1", timeout_s=90) as world:
        for rank, lines in enumerate(world.run(work)):
            assert len(lines) == 3
            for line, call in zip(lines, ["all_reduce(float32[1000]"] * 2 + ["broadcast(float64[5]"], strict=True):
                assert line.startswith(f"[rank {rank}] {call}")
                assert "over 2x1, staged, in place: " + ("40 B" if "broadcast" in call else "3.91 KiB") + " in " in line
                assert "takes about" in line.partition("; ")[2]


@pytest.mark.filterwarnings("ignore")  # torch warns of quantized tensors
@pytest.mark.ranks(hosts="2x2")
def test_quantized_tensors_of_two_scales_are_two_calls() -> None:
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


THREADS, ROUNDS = 4, 5


def in_threads(work: Callable[[int], object]) -> list[object]:
    """What a function returns in threads that begin together; it gets the number of its thread."""
    begin = threading.Barrier(THREADS)

    def run(thread: int) -> object:
        begin.wait(30)
        return work(thread)

    with ThreadPoolExecutor(THREADS) as pool:
        return [*pool.map(run, range(THREADS))]


def total(group: unisono.Group, thread: int) -> float:
    """The sum over the group of a value that differs between threads and ranks: a digit tells each."""
    tensor = torch.full((3,), (thread + 1) * 10.0**group.rank)
    unisono.all_reduce(tensor, group=group)
    (value,) = set(tensor.tolist())
    return value


WANTED = [(thread + 1) * 1111.0 for thread in range(THREADS)]


def first_calls() -> list[list[object]]:
    seen = []
    for _ in range(ROUNDS):
        groups = [unisono.new_group() for _ in range(THREADS)]
        seen.append(in_threads(lambda thread, groups=groups: total(groups[thread], thread)))
        for group in groups:
            unisono.destroy_group(group)
    return seen


def test_groups_make_their_first_calls_at_once(on_hosts: Callable[[str], unisono.World]) -> None:
    """Each makes a group of its ranks on this host then, and the threads of different ranks do so in any order."""
    assert on_hosts("2x2").run(first_calls) == [[WANTED] * ROUNDS] * 4
