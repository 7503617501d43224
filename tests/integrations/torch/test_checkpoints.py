"""Models and optimizers in pieces, and what is saved of them: as of a model that one process trains on all examples."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.integrations.torch.test_training import DDP, WIDTH, batches, mesh_of, model
from tests.support.on_ranks import in_process_group
from tests.support.torch_ranks import TorchRanks

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


def adam(one: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(one.parameters(), lr=0.01)


def step(one: nn.Module, optimizer: Any, data: torch.Tensor) -> None:
    optimizer.zero_grad()
    one(data).square().mean().backward()
    optimizer.step()


def train_both(pieces: nn.Module, optimizer: Any, whole: nn.Module, alone: Any) -> None:
    """Train a model in pieces on this rank's examples, and another one on those of all ranks."""
    of_all = zip(*(batches(3, seed=rank) for rank in range(dist.get_world_size())), strict=True)
    for mine, data in zip(batches(3), of_all, strict=True):
        step(pieces, optimizer, mine)
        step(whole, alone, torch.cat(data))


def trained(wrap: Callable[[nn.Module], nn.Module], make: Callable[[nn.Module], Any] = adam) -> tuple[Any, ...]:
    """A wrapped model and its optimizer after some steps; and those of one process."""
    whole, wrapped = model(), wrap(model())
    made = wrapped, make(wrapped), whole, adam(whole)
    train_both(*made)
    return made


def sharded(mesh: Any = None) -> Callable[[nn.Module], nn.Module]:
    def wrap(one: nn.Module) -> nn.Module:
        from torch.distributed.fsdp import fully_shard

        for part in (*one.children(), one):
            fully_shard(part, mesh=mesh)
        return one

    return wrap


def same(states: dict[str, Any], others: dict[str, Any]) -> None:
    """Do two state dicts have the same names and numbers?"""
    assert states.keys() == others.keys()
    for name, state in states.items():
        if isinstance(state, dict):
            same(state, others[name])
        elif isinstance(state, torch.Tensor):
            whole = state.full_tensor() if hasattr(state, "full_tensor") else state
            assert torch.allclose(whole, others[name], atol=1e-5), name


@pytest.mark.parametrize(("size", "hosts"), [(3, ""), (3, "2+1"), (4, ""), (4, "2x2")])
@in_process_group("size", hosts="hosts")
def test_states_of_what_is_sharded(size: int, hosts: str) -> None:
    """Four ranks are two copies of two shards."""
    from torch.distributed.checkpoint import state_dict as states

    mesh = mesh_of(*([2, 2] if size == 4 else [3]))
    pieces, optimizer, whole, alone = trained(sharded(mesh))
    options = states.StateDictOptions(full_state_dict=True)
    mine, of_optimizer = states.get_state_dict(pieces, optimizer, options=options)
    same(mine, whole.state_dict())
    same(of_optimizer["state"], states.get_optimizer_state_dict(whole, alone)["state"])

    # What rank 0 alone has read is given to all.
    options = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    fresh = sharded(mesh)(nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)]))
    states.set_model_state_dict(fresh, whole.state_dict() if not dist.get_rank() else {}, options=options)
    same(fresh.state_dict(), whole.state_dict())


@pytest.mark.parametrize("hosts", ["", "2+1"])
@pytest.mark.parametrize("later", [False, True], ids=["save", "async_save"])
def test_checkpoint_loads_on_fewer_ranks(ranks: TorchRanks, tmp_path: Path, later: bool, hosts: str) -> None:
    where = {"checkpoint_id": str(tmp_path)}

    def save() -> dict[str, Any]:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint import state_dict as states

        pieces, optimizer, whole, alone = trained(sharded())
        kept = dict(zip(("model", "optimizer"), states.get_state_dict(pieces, optimizer), strict=True))
        if later:
            own = dist.new_group()  # its thread makes calls while this one does
            pending: Any = checkpoint.async_save(kept, **where, process_group=own)
            step(pieces, optimizer, next(batches(1)))  # what is saved is what was before
            pending.result()
        else:
            checkpoint.save(kept, **where)
        return {"model": whole.state_dict(), "optimizer": states.get_optimizer_state_dict(whole, alone)}

    def load(expected: dict[str, Any]) -> None:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint import state_dict as states

        pieces, optimizer, *_ = trained(sharded())
        kept = dict(zip(("model", "optimizer"), states.get_state_dict(pieces, optimizer), strict=True))
        for tensor in pieces.parameters():
            nn.init.zeros_(tensor)
        checkpoint.load(kept, **where)
        states.set_state_dict(pieces, optimizer, model_state_dict=kept["model"], optim_state_dict=kept["optimizer"])
        same(pieces.state_dict(), expected["model"])
        same(states.get_optimizer_state_dict(pieces, optimizer)["state"], expected["optimizer"]["state"])

    ranks(2, hosts="1+1" if hosts else "")(load, ranks(3, hosts=hosts)(save)[0])


@pytest.mark.parametrize(("backend", "named"), [("unisono", None), ("gloo", range(3))])
@in_process_group(3, "backend", named="named")
def test_sharded_state_with_empty_shards(tmp_path: Path, backend: str, named: range | None) -> None:
    """Rank 2 has no part of a bias of two numbers."""
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


@pytest.mark.ranks(3, backend="unisono")
def test_optimizer_state_is_consolidated() -> None:
    def pieces(one: nn.Module) -> Any:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(one.parameters(), torch.optim.Adam, lr=0.01)

    wrapped, optimizer, whole, alone = trained(DDP, pieces)
    assert len(optimizer.optim.state_dict()["state"]) < 6
    for owner in range(3):
        optimizer.consolidate_state_dict(owner)
        if dist.get_rank() == owner:
            same(optimizer.state_dict()["state"], alone.state_dict()["state"])
    again = copy.deepcopy(alone.state_dict())
    fresh = pieces(wrapped)
    fresh.load_state_dict(again)
    train_both(wrapped, fresh, whole, alone)
    same(wrapped.module.state_dict(), whole.state_dict())
