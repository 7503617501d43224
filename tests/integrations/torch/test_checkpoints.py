"""The states of models and optimizers in pieces are saved, loaded, and brought together as those of whole ones."""

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn
from torch.optim import Adam

from tests.integrations.torch.test_training import mesh_of, model, sharded
from tests.support.torch_ranks import TorchRanks, in_process_group

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


def stepped(one: nn.Module) -> tuple[nn.Module, Adam]:
    """A model and its optimizer after a step in which no rank needs another."""
    optimizer = Adam(one.parameters(), lr=0.01)
    for parameter in one.parameters():
        parameter.grad = parameter.detach().sin()
    optimizer.step()
    return one, optimizer


def same(states: dict[str, Any], others: dict[str, Any]) -> None:
    """Do two state dicts have the same names and numbers?"""
    assert states.keys() == others.keys()
    for name, state in states.items():
        if isinstance(state, dict):
            same(state, others[name])
        elif hasattr(state, "tolist"):
            assert getattr(state, "full_tensor", lambda one=state: one)().tolist() == others[name].tolist(), name


@pytest.mark.parametrize(("size", "hosts"), [(3, ""), (3, "2+1"), (4, ""), (4, "2x2")])
@in_process_group("size", hosts="hosts")
def test_states_of_what_is_sharded(size: int, hosts: str) -> None:
    """Four ranks are two copies of two shards. What rank 0 alone has read is given to all."""
    from torch.distributed.checkpoint import state_dict as states

    mesh, whole = mesh_of(*([2, 2] if size == 4 else [3])), stepped(model())
    full = states.StateDictOptions(full_state_dict=True)
    mine = states.get_state_dict(*stepped(sharded(model(), mesh)), options=full)
    for ours, theirs in zip(mine, states.get_state_dict(*whole), strict=True):
        same(ours, theirs)
    fresh, from_0 = sharded(model(), mesh), states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    states.set_model_state_dict(fresh, whole[0].state_dict() if not dist.get_rank() else {}, options=from_0)
    same(fresh.state_dict(), whole[0].state_dict())


@pytest.mark.parametrize("hosts", ["", "2+1"])
@pytest.mark.parametrize("later", [False, True], ids=["save", "async_save"])
def test_checkpoint_loads_on_fewer_ranks(ranks: TorchRanks, tmp_path: Path, later: bool, hosts: str) -> None:
    where = {"checkpoint_id": str(tmp_path)}

    def kept(made: tuple[nn.Module, Adam]) -> dict[str, Any]:
        from torch.distributed.checkpoint import state_dict as states

        return dict(zip(("model", "optimizer"), states.get_state_dict(*made), strict=True))

    def save() -> None:
        from torch.distributed import checkpoint

        state = kept(made := stepped(sharded(model())))
        if later:
            pending: Any = checkpoint.async_save(state, **where, process_group=dist.new_group())
            dist.all_reduce(next(model().parameters()))  # the thread that saves makes calls while this one does
            made[1].step()  # what is saved is what was before
            pending.result()
        else:
            checkpoint.save(state, **where)

    def load() -> None:
        from torch.distributed import checkpoint

        pieces = sharded(model())
        for tensor in pieces.parameters():
            nn.init.zeros_(tensor)
        checkpoint.load(state := kept(stepped(pieces)), **where)
        same(state, kept(stepped(model())))

    ranks(3, hosts=hosts)(save)
    ranks(2, hosts="1+1" if hosts else "")(load)


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
