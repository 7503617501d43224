"""`retry`: a step in which a rank fails counts on all survivors, or on none, and is then made again."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import unisono
from tests.support.faults import FAILED, all_pids, die
from tests.support.on_ranks import in_new_world
from tests.support.torch_ranks import TorchRanks
from tests.support.waiting import once as once_true
from tests.support.waiting import until

STEPS, DEADLINE_S = 6, 30.0


def expected(ranks: list[int], victim: int, died_in: int, counts: bool) -> list[float]:
    """The weights after all steps, where the victim's data counts for the last time in the step before, or this one."""
    weights = [1.0, 1.0]
    for step in range(STEPS):
        with_it = step < died_in or (step == died_in and counts)
        data = [10.0**step * (1 + rank) for rank in ranks if with_it or rank != victim]
        weights = [2 * weight + sum(data) for weight in weights]
    return weights


def train(victim: int, died_in: int, moment: str) -> tuple[list[float], int]:
    group = unisono.init()
    me = group.rank
    weights = torch.ones(2, dtype=torch.float64)

    def die_at(here: str, step: int) -> None:
        if (me, step, here) == (victim, died_in, moment):
            die()

    for step in range(STEPS):

        def once(step: int = step) -> None:
            die_at("at the beginning", step)
            change = torch.full((2,), 10.0**step * (1 + me), dtype=torch.float64)
            weights.mul_(2)
            unisono.all_reduce(change)
            die_at("between calls", step)
            unisono.barrier()
            weights.add_(change)
            die_at("at the end", step)

        unisono.retry(once, [weights])
    return weights.tolist(), unisono.get_world_size()


@pytest.mark.sampled
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize(
    ("moment", "counts"), [("at the beginning", False), ("between calls", False), ("at the end", True)]
)
def test_survivors_end_with_the_same_bits(victim: int, moment: str, counts: bool) -> None:
    seen = unisono.run(train, 3, (victim, 3, moment), timeout_s=DEADLINE_S, return_exceptions=True)
    assert seen.pop(victim) == FAILED
    assert seen == [(expected([0, 1, 2], victim, 3, counts), 2)] * 2


@in_new_world(2, timeout_s=DEADLINE_S, return_exceptions=True, gives=[(2, 1, True), FAILED])
def test_what_draws_random_numbers_draws_the_same_again() -> tuple[int, int, bool]:
    me, drawn = unisono.get_rank(), []
    torch.manual_seed(7)

    def once() -> float:
        drawn.append(torch.rand(1).item())
        if me == 1:
            die()
        unisono.barrier()
        return drawn[-1]

    last = unisono.retry(once)
    return len(drawn), len(set(drawn)), last == drawn[0]


@in_new_world(3, timeout_s=DEADLINE_S, return_exceptions=True, gives=[3.0, 3.0, FAILED])
def test_a_rank_that_is_interrupted_while_the_group_shrinks_comes_back_or_ends(tmp_path: Path) -> float:
    group = unisono.init()
    me, lender = group.rank, group.host.lender
    mine, heard = torch.zeros(1), group.heard_of

    def fail(*_: object) -> None:
        del lender.lend
        raise KeyboardInterrupt

    def once() -> None:
        unisono.barrier()
        if me == 2:
            die()
        mine.fill_(2.0**me)
        unisono.all_reduce(mine)

    if me == 0:
        lender.lend = fail
        with pytest.raises(KeyboardInterrupt):
            unisono.retry(once)
        until((tmp_path / "heard").exists)
    elif me == 1:
        once_true(lambda: bool(heard), (tmp_path / "heard").touch)
    unisono.retry(once)
    return mine.item()


def test_modules_and_optimizers_are_put_back(ranks: TorchRanks, tmp_path: Path) -> None:
    def work() -> None:
        me = dist.get_rank()
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)

        def once() -> None:
            optimizer.zero_grad()
            model(torch.tensor([[1.0 + me]])).sum().backward()
            unisono.average_gradients(model)
            optimizer.step()
            if me == 1 and len(tried) == 2:
                die()
            unisono.barrier()
            dist.all_reduce(torch.ones(1))

        tried: list[int] = []
        for step in range(3):
            tried.append(step)
            unisono.retry(
                once, [model, optimizer], shrink=lambda error: dist.shrink_group(list(error.failed))
            )  # fmt: skip
        (tmp_path / f"{me}").write_text(str(model.weight.item()))

    if not hasattr(dist, "shrink_group"):
        pytest.skip("this torch cannot shrink groups")
    with pytest.raises(unisono.RankFailed):
        ranks(2)(work)
    weight, momentum = 1.0, 0.0
    for gradient in (1.5, 1.0, 1.0):  # of both ranks at first
        momentum = 0.5 * momentum + gradient
        weight -= 0.5 * momentum
    assert {path.name: path.read_text() for path in tmp_path.glob("[01]")} == {"0": str(weight)}


def test_a_rank_that_dies_in_the_backward_pass_of_data_parallel(tmp_path: Path) -> None:
    """The error reaches the survivors through torch's C++ code, from a bucket's all_reduce."""

    def work() -> tuple[object, float]:
        me = dist.get_rank()
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        wrapped, seen = [DistributedDataParallel(model)], []

        def once(step: int) -> None:
            optimizer.zero_grad()
            loss = wrapped[0](torch.tensor([[1.0 + me]])).sum()
            if me == 1 and step == 1:
                loss.register_hook(lambda _: die())
            try:
                loss.backward()
            except dist.DistBackendError as error:
                seen.append([type(error).__name__, *error.failed])  # type: ignore[attr-defined]  # it is a PeerGone
                raise
            optimizer.step()

        def shrink(error: unisono.PeerError) -> None:
            dist.shrink_group(list(error.failed))
            wrapped[0] = DistributedDataParallel(model)

        for step in range(3):
            unisono.retry(partial(once, step), [model, optimizer], shrink=shrink)
        return seen, model.weight.item()

    if not hasattr(dist, "shrink_group"):
        pytest.skip("this torch cannot shrink groups")
    with unisono.World(3, timeout_s=DEADLINE_S, return_exceptions=True) as world:
        done = TorchRanks(lambda _: world, tmp_path)(3)(work)
    weight = 1.0 - 0.5 * (1 + 2 + 3) / 3 - 0.5 * 2 * (1 + 3) / 2
    assert done[::2] == [([["PeerGone", 1]], weight)] * 2


@in_new_world(1, gives=["done"])
def test_other_errors_are_the_caller_s() -> str:
    def wrong() -> None:
        raise LookupError("no such file")

    with pytest.raises(LookupError):
        unisono.retry(wrong)
    with pytest.raises(unisono.DTypeError, match="got int"):
        unisono.retry(lambda: None, [3])
    return unisono.retry(lambda: "done")


CALLS: dict[str, Callable[[torch.Tensor], object]] = {
    "ring": lambda t: unisono.all_reduce(t, algorithm="ring"),
    "two_shot": lambda t: unisono.all_reduce(t, algorithm="two_shot"),
    "broadcast": lambda t: unisono.broadcast(t, 2, algorithm="chain"),
    "strided": lambda t: unisono.all_reduce(t[::2], algorithm="ring"),
}


@pytest.mark.sampled(most=3)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(("shared", "crossed"), [(False, False), (True, False), (False, True)])
@in_new_world(4, config=unisono.Config(keep_inputs=True), return_exceptions=True, gives=[None, FAILED, None, None])
def test_inputs_are_kept(name: str, shared: bool, crossed: bool) -> None:
    """Rank 1 dies within the call, stopped there by rank 2, which comes late."""
    group = unisono.init()
    pids = all_pids()
    count = (1 << 19) if crossed else 100_000
    tensor = group.empty(count) if shared else torch.empty(count)
    tensor.copy_(torch.arange(count) % 1000 + group.rank)
    before = tensor.clone()
    if group.rank == 2:
        while group.host.entered(1) < group.host.call_number:
            pass
        os.kill(pids[1], signal.SIGKILL)
    try:
        CALLS[name](tensor)
    except unisono.PeerGone:
        assert torch.equal(tensor, before)
    else:
        assert name == "broadcast", "who is before rank 1 in a chain may have done its part"
