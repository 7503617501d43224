"""Calls that gradients flow through, objects, and programs that torchrun starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.torch_ranks import TorchRanks

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


def test_gradients_flow_through_calls(ranks: TorchRanks) -> None:
    def work() -> list[Any]:
        from torch.distributed import nn

        me, size = dist.get_rank(), dist.get_world_size()

        def both(call: Callable[[torch.Tensor], Any]) -> tuple[Any, Any]:
            tensor = (torch.arange(2.0 * size) + 10 * me + 1).requires_grad_()
            results = call(tensor)
            results = [results] if isinstance(results, torch.Tensor) else list(results)
            whole = torch.stack(results)
            weights = torch.arange(float(whole.numel())).view_as(whole) + me
            (whole * weights).sum().backward()
            assert tensor.grad is not None
            return whole.tolist(), tensor.grad.tolist()

        def halves(tensor: torch.Tensor) -> list[torch.Tensor]:
            return [part.contiguous() for part in tensor.chunk(size)]

        def blocks() -> list[torch.Tensor]:
            return [torch.empty(2) for _ in range(size)]

        world = dist.group.WORLD  # the default is the group that there was when torch.distributed.nn was imported
        return [
            both(lambda t: nn.functional.all_reduce(t, group=world)),
            both(lambda t: nn.functional.broadcast(t, 1, world)),
            both(lambda t: nn.functional.reduce(t, 1, group=world) * (me == 1)),  # Gloo leaves rests elsewhere
            both(lambda t: nn.functional.all_gather(t, world)),
            both(lambda t: nn.functional.gather(t, 1, world)),
            both(lambda t: nn.functional.scatter(halves(t), 0, world)),
            both(lambda t: nn.functional.reduce_scatter(torch.empty(2), halves(t), group=world)),
            both(lambda t: nn.functional.all_to_all(blocks(), halves(t), world)),
            both(lambda t: nn.functional.all_to_all_single(torch.empty(2 * size), t, group=world)),
        ]

    ours = ranks(2)(work)
    assert ours == ranks(2, "gloo")(work)
    assert ours[0] != ours[1]


@pytest.mark.parametrize("size", [2, 3])
def test_values_and_gradients_of_calls_by_their_formulae(ranks: TorchRanks, size: int) -> None:
    def work() -> None:
        from torch.distributed.nn import functional

        me, world, everybody = dist.get_rank(), dist.group.WORLD, range(size)
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(size, 2 * size, generator=generator)  # row r: what rank r has
        blocks = x.view(size, size, 2)  # [r, q]: what rank r has for rank q
        w = torch.randn(size, 2 * size, generator=generator)  # row r: the derivative after rank r's result
        weights = w.view(size, size, 2)
        many = torch.randn(size, size, 2 * size, generator=generator)  # the same for results of all ranks' rows

        def check(
            call: Callable[[torch.Tensor], Any], value: torch.Tensor | None, after: torch.Tensor, gradient: torch.Tensor
        ) -> None:
            tensor = x[me].clone().requires_grad_()
            got = call(tensor)
            got = got if isinstance(got, torch.Tensor) else torch.stack(list(got))
            if value is not None:
                assert torch.allclose(got, value, atol=1e-5)
            (got * after.view_as(got)).sum().backward()
            assert tensor.grad is not None
            assert torch.allclose(tensor.grad, gradient, atol=1e-5)

        def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
            return list(tensor.view(size, 2).unbind())

        def empty() -> list[torch.Tensor]:
            return [torch.empty(2) for _ in everybody]

        zero, first, last = torch.zeros(2 * size), me == 0, me == size - 1
        root = size - 1
        total, given = x.sum(0), w.sum(0)
        check(lambda t: functional.all_reduce(t, group=world), total, w[me], given)
        check(lambda t: functional.broadcast(t, root, world), x[root], w[me], given if last else zero)
        check(lambda t: functional.reduce(t, root, group=world), total if last else None, w[me], w[root])
        check(lambda t: functional.all_gather(t, world), x, many[me], many.sum(0)[me])
        check(lambda t: functional.gather(t, root, world), x if last else None, many[me], many[root][me])
        mine = w[:, :2]  # row r: the derivative after rank r's result of two numbers
        check(lambda t: functional.scatter(parts(t), 0, world), blocks[0][me], mine[me], mine.flatten() * first)
        summed = blocks.sum(0)
        check(
            lambda t: functional.reduce_scatter(torch.empty(2), parts(t), group=world),
            summed[me],
            mine[me],
            mine.flatten(),
        )
        exchanged, back = blocks[:, me], weights[:, me].flatten()
        check(lambda t: functional.all_to_all(empty(), parts(t), world), exchanged, w[me], back)
        check(
            lambda t: functional.all_to_all_single(torch.empty(2 * size), t, group=world),
            exchanged.flatten(),
            w[me],
            back,
        )

    ranks(size)(work)


def test_lists_of_objects(ranks: TorchRanks) -> None:
    def work() -> list[Any]:
        me = dist.get_rank()
        things: list[Any] = [{"from": me}, "x" * 100 * me, torch.arange(3) + me, None]
        got: list[Any] = [None] * 4
        for use_batch in (False, True):
            if me == 1:
                dist.send_object_list(things, 0, use_batch=use_batch)
                dist.recv_object_list(got, 2, use_batch=use_batch)
            elif me == 2:
                dist.send_object_list(things, 1, use_batch=use_batch)
            else:
                assert dist.recv_object_list(got, 1, use_batch=use_batch) == 1
        return got

    got = ranks(3)(work)
    assert got[0][:2] == [{"from": 1}, "x" * 100]
    assert got[1][:2] == [{"from": 2}, "x" * 200]
    assert got[1][2].tolist() == [2, 3, 4]
    assert got[2] == [None] * 4


SCRIPT = """
import torch
import torch.distributed as dist
from unisono.integrations.torch import register

register()
dist.init_process_group("unisono")
me, size = dist.get_rank(), dist.get_world_size()
tensor = torch.tensor([10.0 ** me])
dist.all_reduce(tensor)
middle = dist.new_group([0, 2])
dist.broadcast(tensor.mul_(me), 2, group=middle) if me != 1 else None
print(f"rank {me} of {size}: {tensor.item()}\\n", end="", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.long
def test_torchrun_starts_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", str(script)],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(Path(unisono.__file__).parent.parent), "OMP_NUM_THREADS": "1"},
    )
    said = sorted(done.stdout.splitlines())
    assert said == ["rank 0 of 3: 222.0", "rank 1 of 3: 111.0", "rank 2 of 3: 222.0"], done.stderr
