"""Differentiable collectives: their values, who requires gradients, and ranks that do not go together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import unisono
from unisono import ArgumentError, DTypeError, MismatchError
from unisono import autograd as ag

Worlds = Callable[[int], unisono.World]


def mine(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(10 * unisono.get_rank() + seed))


def everybody(*shape: int, seed: int = 0) -> list[torch.Tensor]:
    ranks = range(unisono.get_world_size())
    return [torch.randn(shape, generator=torch.Generator().manual_seed(10 * rank + seed)) for rank in ranks]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("grad", [False, True])
def test_values(worlds: Worlds, ranks: int, grad: bool) -> None:
    def work() -> None:
        me, last = unisono.get_rank(), ranks - 1
        all_of = everybody(2 * ranks, 3)
        stacked = torch.stack(all_of)
        x = mine(2 * ranks, 3).requires_grad_(grad)
        expected = {"sum": stacked.sum(0), "avg": stacked.mean(0), "product": stacked.prod(0), "min": stacked.amin(0)}
        blocks = list(x.chunk(ranks))
        for op, whole in expected.items():
            part = whole.chunk(ranks)[me]
            torch.testing.assert_close(ag.all_reduce(x, op), whole.requires_grad_(grad))
            on_last = whole if me == last else torch.zeros_like(whole)
            torch.testing.assert_close(ag.reduce(x, last, op), on_last)
            torch.testing.assert_close(ag.reduce_scatter(blocks, op), part)
            torch.testing.assert_close(ag.reduce_scatter_single(x, op), part)
        assert torch.equal(ag.broadcast(x, last), all_of[last])
        assert torch.equal(ag.scatter(blocks if me == last else None, last), all_of[last].chunk(ranks)[me])
        assert all(map(torch.equal, ag.all_gather(x), all_of))
        assert torch.equal(ag.all_gather_single(x), torch.cat(all_of))
        gathered = ag.gather(x, last)
        assert len(gathered) == ranks
        assert all(map(torch.equal, gathered, all_of)) if me == last else not any(t.numel() for t in gathered)
        exchanged = [other.chunk(ranks)[me] for other in all_of]
        assert all(map(torch.equal, ag.all_to_all(blocks), exchanged))
        assert torch.equal(ag.all_to_all_single(x), torch.cat(exchanged))
        assert torch.equal(x, mine(2 * ranks, 3))

    worlds(ranks).run(work)


def test_of_integers(worlds: Worlds) -> None:
    def work() -> None:
        x = torch.arange(4) + unisono.get_rank()
        assert torch.equal(ag.all_reduce(x), 2 * torch.arange(4) + 1)
        assert torch.equal(ag.all_reduce(x, "max"), torch.arange(4) + 1)
        assert not ag.all_gather_single(x).requires_grad

    worlds(2).run(work)


def test_results_require_gradients_everywhere_or_nowhere(worlds: Worlds) -> None:
    def work() -> None:
        x = torch.ones(3)
        assert not ag.all_reduce(x).requires_grad
        assert not ag.scatter([x, x, x] if unisono.get_rank() == 1 else None, 1).requires_grad
        x.requires_grad_(unisono.get_rank() == 1)
        assert ag.all_reduce(x).requires_grad
        assert ag.scatter([x, x, x] if unisono.get_rank() == 1 else None, 1).requires_grad
        assert all(result.requires_grad for result in ag.gather(x))
        with torch.no_grad():
            before = unisono.init().host.call_number
            assert not ag.all_reduce(x).requires_grad
            assert unisono.init().host.call_number == before + 1

    worlds(3).run(work)


def test_a_split_layer_has_the_gradients_of_the_whole(worlds: Worlds) -> None:
    """Tensor parallelism: columns of one matrix and rows of the next on every rank."""

    def work() -> None:
        me, p = unisono.get_rank(), unisono.get_world_size()
        generator = torch.Generator().manual_seed(1)
        x, first, second = (
            torch.randn(n, m, generator=generator, dtype=torch.float64) for n, m in ((5, 4), (4, 6), (6, 2))
        )
        whole = [tensor.clone().requires_grad_() for tensor in (x, first, second)]
        (torch.relu(whole[0] @ whole[1]) @ whole[2]).square().sum().backward()
        parts = [first.chunk(p, 1)[me].clone().requires_grad_(), second.chunk(p)[me].clone().requires_grad_()]
        y = ag.all_reduce(torch.relu(x @ parts[0]) @ parts[1])
        (y.square().sum() / p).backward()  # the gradient is that of the sum of all ranks' losses
        torch.testing.assert_close(parts[0].grad, whole[1].grad.chunk(p, 1)[me])
        torch.testing.assert_close(parts[1].grad, whole[2].grad.chunk(p)[me])

    worlds(3).run(work)


def test_ties_and_zeros(worlds: Worlds) -> None:
    def work() -> None:
        me = unisono.get_rank()
        x = torch.tensor([1.0, 2.0, float(me)], requires_grad=True)
        ag.all_reduce(x, "max").sum().backward()
        assert torch.equal(x.grad, torch.tensor([1.0, 1.0, 3.0 if me == 2 else 0.0]))
        y = torch.tensor([0.0, 2.0 if me else 0.0, 3.0], requires_grad=True)
        ag.all_reduce(y, "product").sum().backward()
        assert torch.equal(y.grad, torch.tensor([0.0, 0.0 if me else 12.0, 27.0]))

    worlds(3).run(work)


def test_join_lets_ranks_without_a_use_take_part(worlds: Worlds) -> None:
    def work() -> None:
        x = mine(4).requires_grad_()
        results = ag.gather(x, 1)
        own = x.square().sum()
        loss = own + torch.stack(results).sum() if unisono.get_rank() == 1 else ag.join(own, *results)
        if unisono.get_rank() != 1:
            assert torch.equal(loss, own)
        loss.backward()
        torch.testing.assert_close(x.grad, 2 * x.detach() + 1)

    worlds(3).run(work)


def test_backward_in_another_order_is_noticed(worlds: Worlds) -> None:
    def work() -> None:
        x = mine(4).requires_grad_()
        results = [ag.all_reduce(x), ag.all_reduce(x)]
        first, second = results if unisono.get_rank() else results[::-1]
        with pytest.raises(MismatchError, match=r"backward of autograd.all_reduce\(made as call #"):
            first.sum().backward()
        assert x.grad is None
        with pytest.raises(MismatchError):
            second.sum().backward()
        y = mine(4).requires_grad_()
        ag.all_reduce(y).sum().backward()
        assert torch.equal(y.grad, torch.full((4,), 2.0))

    worlds(2).run(work)


def test_grad_mode_must_be_the_same(worlds: Worlds) -> None:
    def work() -> None:
        with (
            torch.set_grad_enabled(unisono.get_rank() == 0),
            pytest.raises(MismatchError, match=r"autograd\.broadcast"),
        ):
            ag.broadcast(torch.ones(3), 0)
        ag.broadcast(torch.ones(3), 0)

    worlds(3).run(work)


def test_what_no_call_takes(worlds: Worlds) -> None:
    def work() -> None:
        x = torch.ones(4)
        root = unisono.get_rank() == 0
        refused: list[tuple[Callable[[], object], type[Exception], str]] = [
            (lambda: ag.all_reduce([x]), DTypeError, "tensor: expected a torch.Tensor"),  # type: ignore[arg-type]
            (lambda: ag.all_reduce(x.int(), "bor"), ArgumentError, "has no gradient"),
            (lambda: ag.all_reduce(x, unisono.ReduceOp.PREMUL_SUM(2.0)), ArgumentError, "has no gradient"),
            (lambda: ag.all_reduce(x, "sun"), ArgumentError, "op"),
            (lambda: ag.reduce(x, 5), ArgumentError, "dst=5"),
            (lambda: ag.reduce_scatter(x, [x, x]), DTypeError, "input_list"),  # type: ignore[arg-type]
            (lambda: ag.reduce_scatter([x]), ArgumentError, "input_list: expected 2 tensors"),
            (lambda: ag.reduce_scatter_single(torch.ones(5)), ArgumentError, "tensor: is float32"),
            (lambda: ag.reduce_scatter_single(torch.ones(())), ArgumentError, "tensor: is float32"),
            (lambda: ag.all_to_all_single(torch.ones(5)), ArgumentError, "input: is float32"),
            (lambda: ag.all_reduce(x if root else x[1:], "max"), ArgumentError, r"shapes \[4\], \[3\], in rank order"),
            (lambda: ag.scatter(None if root else [x, x]), (ArgumentError, DTypeError), "tensors"),  # type: ignore[list-item]
        ]
        for call, error, message in refused:
            with pytest.raises(error, match=message):
                call()
            unisono.barrier()

    worlds(2).run(work)
