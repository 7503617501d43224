"""Models and optimizers in pieces, and what is saved of them: as of a model that one process trains on all examples."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.torch_ranks import TorchRanks

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5))


def adam(one: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(one.parameters(), lr=0.01)


def batches() -> Iterator[torch.Tensor]:
    """Three of four examples for each rank: (ranks, 4, 6)."""
    for seed in range(3):
        yield torch.randn(dist.get_world_size(), 4, 6, generator=torch.Generator().manual_seed(seed))


def step(one: nn.Module, optimizer: Any, data: torch.Tensor) -> None:
    optimizer.zero_grad()
    one(data).square().mean().backward()
    optimizer.step()


def trained(wrap: Callable[[nn.Module], nn.Module], make: Callable[[nn.Module], Any] = adam) -> tuple[Any, ...]:
    """A wrapped model and its optimizer after some steps; and those of one process, on all ranks' examples."""
    whole, wrapped = model(), wrap(model())
    optimizers = adam(whole), make(wrapped)
    for data in batches():
        step(whole, optimizers[0], data.flatten(0, 1))
        step(wrapped, optimizers[1], data[dist.get_rank()])
    return wrapped, optimizers[1], whole, optimizers[0]


def sharded(mesh: Any = None) -> Callable[[nn.Module], nn.Module]:
    def wrap(one: nn.Module) -> nn.Module:
        from torch.distributed.fsdp import fully_shard

        for part in (*(child for child in one.children() if isinstance(child, nn.Linear)), one):
            fully_shard(part, mesh=mesh)
        return one

    return wrap


def by_device_mesh(shape: tuple[int, ...]) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])


def same(states: dict[str, Any], others: dict[str, Any]) -> None:
    """Do two state dicts have the same names and numbers?"""
    assert states.keys() == others.keys()
    for name, state in states.items():
        if isinstance(state, dict):
            same(state, others[name])
        elif isinstance(state, torch.Tensor):
            whole = state.full_tensor() if hasattr(state, "full_tensor") else state
            assert torch.allclose(whole, others[name], atol=1e-5), name


@pytest.mark.parametrize("shape", [(3,), (2, 2)], ids=["sharded", "sharded and replicated"])
def test_states_of_what_is_sharded(ranks: TorchRanks, shape: tuple[int, ...]) -> None:
    def work() -> None:
        from torch.distributed.checkpoint import state_dict as states

        pieces, optimizer, whole, alone = trained(sharded(by_device_mesh(shape)))
        options = states.StateDictOptions(full_state_dict=True)
        mine, of_optimizer = states.get_state_dict(pieces, optimizer, options=options)
        same(mine, whole.state_dict())
        same(of_optimizer["state"], states.get_optimizer_state_dict(whole, alone)["state"])

        # What rank 0 alone has read is given to all.
        options = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        fresh = sharded(by_device_mesh(shape))(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5)))
        states.set_model_state_dict(fresh, whole.state_dict() if not dist.get_rank() else {}, options=options)
        same(fresh.state_dict(), whole.state_dict())

    ranks(torch.Size(shape).numel())(work)


@pytest.mark.parametrize("later", [False, True], ids=["save", "async_save"])
def test_checkpoint_loads_on_fewer_ranks(ranks: TorchRanks, tmp_path: Path, later: bool) -> None:
    def save() -> dict[str, Any]:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint import state_dict as states

        pieces, optimizer, whole, alone = trained(sharded())
        kept = dict(zip(("model", "optimizer"), states.get_state_dict(pieces, optimizer), strict=True))
        if later:
            own = dist.new_group()  # its thread makes calls while this one does
            pending: Any = checkpoint.async_save(kept, checkpoint_id=str(tmp_path), process_group=own)
            step(pieces, optimizer, next(batches())[dist.get_rank()])  # what is saved is what was before
            pending.result()
        else:
            checkpoint.save(kept, checkpoint_id=str(tmp_path))
        return {"model": whole.state_dict(), "optimizer": states.get_optimizer_state_dict(whole, alone)}

    def load(expected: dict[str, Any]) -> None:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint import state_dict as states

        pieces, optimizer, *_ = trained(sharded())
        kept = dict(zip(("model", "optimizer"), states.get_state_dict(pieces, optimizer), strict=True))
        for tensor in pieces.parameters():
            nn.init.zeros_(tensor)
        checkpoint.load(kept, checkpoint_id=str(tmp_path))
        states.set_state_dict(pieces, optimizer, model_state_dict=kept["model"], optim_state_dict=kept["optimizer"])
        same(pieces.state_dict(), expected["model"])
        same(states.get_optimizer_state_dict(pieces, optimizer)["state"], expected["optimizer"]["state"])

    ranks(2)(load, ranks(3)(save)[0])


@pytest.mark.parametrize("named", [None, range(3)], ids=["unisono", "gloo"])
def test_sharded_state_with_empty_shards(ranks: TorchRanks, tmp_path: Path, named: range | None) -> None:
    """Rank 2 has no part of a bias of two numbers."""

    def work() -> None:
        from torch.distributed import checkpoint, fsdp

        kind, form = fsdp.FullyShardedDataParallel, fsdp.StateDictType.SHARDED_STATE_DICT
        saved, loaded = (kind(nn.Linear(4, 2), device_id="cpu") for _ in range(2))
        with kind.state_dict_type(saved, form), kind.state_dict_type(loaded, form):
            checkpoint.save(state := saved.state_dict(), checkpoint_id=str(tmp_path))
            assert state["bias"].device.type == state["bias"].to("cpu").device.type == "cpu"
            state = loaded.state_dict()
            checkpoint.load(state, checkpoint_id=str(tmp_path))
            loaded.load_state_dict(state)
        with kind.summon_full_params(saved), kind.summon_full_params(loaded):
            same(dict(loaded.named_parameters()), dict(saved.named_parameters()))

    ranks(3, "gloo" if named else "unisono", named=named)(work)


@pytest.mark.ranks(3, backend="unisono")
def test_optimizer_state_is_consolidated() -> None:
    def pieces(one: nn.Module) -> Any:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(one.parameters(), torch.optim.Adam, lr=0.01)

    wrapped, optimizer, whole, alone = trained(nn.parallel.DistributedDataParallel, pieces)
    assert len(optimizer.optim.state_dict()["state"]) < 4
    for owner in range(3):
        optimizer.consolidate_state_dict(owner)
        if dist.get_rank() == owner:
            same(optimizer.state_dict()["state"], alone.state_dict()["state"])
    again = copy.deepcopy(alone.state_dict())
    fresh = pieces(wrapped)
    fresh.load_state_dict(again)
    for data in batches():
        step(whole, alone, data.flatten(0, 1))
        step(wrapped, fresh, data[dist.get_rank()])
    same(wrapped.module.state_dict(), whole.state_dict())
