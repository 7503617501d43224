"""all_reduce with rounded values between hosts: its values, its bits, its bytes, and how values become bytes."""

from typing import Any

import pytest
import torch

import unisono
from tests.support.worlds import OnHosts
from unisono.calls.compression.compressed import BLOCK, ROUNDINGS

SHAPES = ("2x2", "3+1", "2x2:round_robin", "2x1", "4x1")


def of_rank(rank: int, count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(100 + rank))


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("shape", SHAPES)
def test_all_ranks_have_the_same_bits_close_to_the_exact_ones(on_hosts: OnHosts, shape: str) -> None:
    def work() -> list[Any]:
        me, size, seen = unisono.get_rank(), unisono.get_world_size(), list[Any]()
        for wire, bound in (("bf16", 0.004), ("int8", 0.015)):
            compression = unisono.Compression(wire)
            for count, dtype in ((20_001, torch.float32), (70_000, torch.float64)):
                exact = sum(of_rank(rank, count) for rank in range(size))
                for op, factor in (("sum", 1.0), ("avg", 1 / size)):
                    tensor = of_rank(me, count).to(dtype)
                    assert compression.all_reduce(tensor, op, name=op) is None
                    error = (tensor - exact * factor).norm() / (exact * factor).norm()
                    assert 0 < error < bound, (wire, op, error)
                    seen.append(tensor.view(torch.uint8).sum(dtype=torch.int64).item())
                    seen.append(tensor[:: count // 50].tolist())
        return seen

    first, *others = on_hosts(shape).run(work)
    assert all(other == first for other in others)


@pytest.mark.ranks(hosts="2x2")
def test_tensors_of_any_layout_and_calls_in_the_background() -> None:
    me = unisono.get_rank()
    compression = unisono.Compression("int8")
    columns = torch.zeros(300, 80)
    part = columns[:, ::2]
    part += me + 1
    works = []
    for name, tensor in (("a", part), ("b", torch.full((9000,), 2.0**me)), ("c", torch.ones(5) * me)):
        works.append((tensor, compression.all_reduce(tensor, name=name, async_op=True)))
    assert all(one.result() is tensor for tensor, one in works)
    assert (columns[:, ::2] == 10).all()
    assert (columns[:, 1::2] == 0).all()
    assert (works[1][0] == 15).all()
    assert (works[2][0] == 6).all()  # so few that they are not rounded


@pytest.mark.ranks(hosts="2x2")
def test_sums_inside_a_host_are_exact() -> None:
    """Each rank's values need 20 bits, those of a host 7: rounded on their own, they would not be right."""
    me = unisono.get_rank()
    whole = torch.arange(8192) % 100
    tensor = whole + (-1) ** me * (1 + torch.arange(8192) % 7) * 2.0**-13
    assert not torch.equal(tensor.bfloat16().float(), tensor)
    unisono.Compression("bf16", error_feedback=False).all_reduce(tensor)
    assert torch.equal(tensor, (4 * whole).bfloat16().float())


@pytest.mark.parametrize("shape", ["2x2", "3+1", "4x1"])
def test_bytes_between_hosts(on_hosts: OnHosts, shape: str) -> None:
    """As the carrier counts them: half of those of an exact call, and about a quarter."""

    def work() -> tuple[list[int], list[tuple[int, int]]]:
        group, sent = unisono.init(), [0]
        carrier = group.span.carrier
        isend = type(carrier).isend

        def counting(peer: int, tag: int, data: torch.Tensor) -> Any:
            sent[0] += data.numel()
            return isend(carrier, peer, tag, data)

        vars(carrier)["isend"] = counting
        counted, told = [], []
        for wire in (None, "bf16", "int8"):
            compression = unisono.Compression(wire or "bf16")
            reduce = compression.all_reduce if wire else unisono.all_reduce
            reduce(torch.ones(1 << 19))  # makes what later calls use
            unisono.barrier()
            sent[0], before = (0, compression.sent_bytes)
            reduce(torch.ones(1 << 19))
            counted.append(sent[0])
            told.append((compression.sent_bytes - before, compression.exact_bytes // 2))
            unisono.barrier()
        del vars(carrier)["isend"]
        return counted, told

    world = on_hosts(shape)
    every = world.run(work)
    exact, bf16, int8 = (sum(counted[k] for counted, _ in every) for k in range(3))
    hosts = len(shape.split("+")) if "+" in shape else int(shape[0])
    assert exact == pytest.approx(2 * (hosts - 1) * (4 << 19), rel=0.02)
    assert bf16 == pytest.approx(exact / 2, rel=0.02)
    assert int8 == pytest.approx(exact * (1 + 4 / 256) / 4, rel=0.02)
    for k, counted in ((1, bf16), (2, int8)):
        assert sum(told[k][0] for _, told in every) == pytest.approx(counted, rel=0.02)
        assert sum(told[k][1] for _, told in every) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("wire", ["bf16", "int8"])
@pytest.mark.ranks(hosts="2x2")
def test_what_is_rounded_away_comes_later(wire: str) -> None:
    """The sum of many calls is as wrong as one call's; without error feedback, errors add up."""
    me, size, count, turns = unisono.get_rank(), unisono.get_world_size(), 6000, 20
    exact, seen = sum(of_rank(rank, count).double() for rank in range(size)), []
    for error_feedback in (True, False):
        compression = unisono.Compression(wire, error_feedback=error_feedback)
        once, total = torch.zeros(1), torch.zeros(count, dtype=torch.float64)
        for turn in range(turns):
            tensor = of_rank(me, count)
            compression.all_reduce(tensor, name="weights")
            once = tensor if turn == 0 else once
            total += tensor
        seen.append(((total - turns * exact).norm() / (once - exact).norm()).item())
    kept, lost = seen
    assert kept < 2.0
    assert lost == pytest.approx(20)


@pytest.mark.ranks(hosts="2x1")
def test_errors_belong_to_a_name() -> None:
    compression = unisono.Compression("int8")

    def reduced(name: str | None, bad: float = 1.0) -> torch.Tensor:
        tensor = of_rank(unisono.get_rank(), 6000)
        tensor[5] *= bad
        compression.all_reduce(tensor, name=name)
        return tensor

    first, other = reduced("a"), reduced("b")
    assert torch.equal(first, other)
    second = reduced("a")
    assert not torch.equal(first, second)
    assert not reduced("b", float("nan"))[5].isfinite()
    assert reduced("b").isfinite().all()  # no error is kept of what is no number
    compression.forget()
    assert torch.equal(reduced("a"), first)


@pytest.mark.ranks(2)
def test_on_one_host_nothing_is_rounded() -> None:
    compression = unisono.Compression("int8")
    tensor, same = of_rank(unisono.get_rank(), 6000), of_rank(unisono.get_rank(), 6000)
    compression.all_reduce(tensor)
    unisono.all_reduce(same)
    assert torch.equal(tensor, same)
    assert compression.sent_bytes == compression.exact_bytes == 0


@pytest.mark.ranks(hosts="2x1")
def test_wrong_arguments_are_told_to_all() -> None:
    with pytest.raises(unisono.ArgumentError, match="'bf16', 'int8'"):
        unisono.Compression("fp4")
    compression, me = unisono.Compression("int8"), unisono.get_rank()
    compression.all_reduce(torch.ones(6000))
    for tensor, op, kind, says in (
        (torch.ones(6000, dtype=torch.int64), "sum", unisono.DTypeError, "floating-point"),
        (torch.ones(6000), "max", unisono.ArgumentError, "'sum' or 'avg'"),
    ):
        if me == 0:
            with pytest.raises(kind, match=says):
                compression.all_reduce(tensor, op)
        else:
            with pytest.raises(unisono.MismatchError):
                unisono.barrier()
    tensor = torch.ones(6000)
    compression.all_reduce(tensor)
    assert (tensor == 2).all()


def test_a_call_that_fails_on_one_host_ends_on_all(on_hosts: OnHosts) -> None:
    def work() -> type[BaseException]:
        compression = unisono.Compression("int8")
        compression.all_reduce(torch.ones(50_000))
        with pytest.raises(unisono.UnisonoError) as caught:
            compression.all_reduce(torch.ones(60_000 if unisono.get_rank() == 3 else 50_000))
        return caught.type

    with unisono.World(4, timeout_s=60, hosts="2x2") as world:
        kinds = world.run(work)
    assert set(kinds) <= {unisono.MismatchError, unisono.PeerFailed}
    assert unisono.PeerFailed in kinds[:2] or kinds[:2] == [unisono.MismatchError] * 2


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
