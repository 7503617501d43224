"""Programs that train with torch: they learn what they do over Gloo, to the last bit, and load what they have saved."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.torch_ranks import TorchRanks, as_over_gloo, in_process_group

pytestmark = pytest.mark.filterwarnings("default")  # torch's own

DDP = nn.parallel.DistributedDataParallel
WIDTH = 14


def model(layers: int = 3, width: int = WIDTH) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)])


def batches(count: int, seed: int | None = None, width: int = WIDTH) -> Iterator[torch.Tensor]:
    """A rank's own data."""
    generator = torch.Generator().manual_seed(dist.get_rank() if seed is None else seed)
    for _ in range(count):
        yield torch.randn(8, width, generator=generator)


def train(wrapped: nn.Module, steps: int = 4, width: int = WIDTH, optimizer: Any = None) -> list[Any]:
    """The loss of each step, and what is learnt."""
    optimizer, losses = optimizer or torch.optim.SGD(wrapped.parameters(), lr=0.1), list[Any]()
    for data in batches(steps, width=width):
        optimizer.zero_grad()
        loss = wrapped(data).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len({*losses}) == steps
    return [*losses, *values(wrapped.parameters())]


def values(tensors: Any) -> list[Any]:
    """The numbers of tensors; of those in pieces, of this rank's."""
    return [getattr(tensor, "to_local", lambda one=tensor: one)().detach().flatten().tolist() for tensor in tensors]


def gradients(module: nn.Module) -> list[Any]:
    return values(parameter.grad for parameter in module.parameters() if parameter.grad is not None)


def mesh_of(*shape: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape, mesh_dim_names=("copies", "stages")[: len(shape)])


def fewer_batches(by_all: bool) -> list[Any]:
    wrapped = DDP(model())
    with wrapped.join(divide_by_initial_world_size=by_all):
        return train(wrapped, 2 + 2 * dist.get_rank())


def sparse_gradients() -> list[Any]:
    torch.manual_seed(0)
    table = nn.EmbeddingBag(10, 4, mode="sum", sparse=True)
    wrapped, optimizer = DDP(table), torch.optim.SGD(table.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        optimizer.zero_grad()
        wrapped(torch.randint(10, (3, 2), generator=generator)).square().sum().backward()
        optimizer.step()
    return values(table.weight)


def hooked(name: str) -> list[Any]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    wrapped: Any = DDP(model())
    builtin = torch._C._distributed_c10d.BuiltinCommHookType
    register = {
        # By its name torch lets this one run over NCCL only.
        "bf16": lambda: wrapped.register_comm_hook(None, lambda s, bucket: hooks.bf16_compress_hook(s, bucket)),
        "fp16": lambda: wrapped.register_comm_hook(None, hooks.fp16_compress_hook),
        "PowerSGD": lambda: wrapped.register_comm_hook(
            power.PowerSGDState(None, 1, start_powerSGD_iter=2), power.powerSGD_hook
        ),
        "builtin": lambda: wrapped._register_builtin_comm_hook(builtin.ALLREDUCE),
        "builtin fp16": lambda: wrapped._register_builtin_comm_hook(builtin.FP16_COMPRESS),
    }
    register[name]()
    return train(wrapped, 5)


def compiled_ddp(backend: str) -> list[Any]:
    torch._dynamo.reset()
    return train(torch.compile(DDP(model()), backend=backend))


# Models in pieces.


def fsdp1(strategy: str) -> list[Any]:
    from torch.distributed import fsdp

    kind = fsdp.ShardingStrategy[strategy]
    return train(fsdp.FullyShardedDataParallel(model(), sharding_strategy=kind, use_orig_params=True, device_id="cpu"))


def sharded(one: nn.Module, mesh: Any = None) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for part in (*one.children(), one):
        fully_shard(part, mesh=mesh)
    return one


def copies_of_shards() -> list[Any]:
    return train(sharded(model(width=13), mesh_of(2, 2)), width=13)


def optimizer_in_pieces() -> list[Any]:
    """Each rank is given the whole state, which another optimizer loads."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    wrapped = DDP(model())
    one, other = (ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.Adam, lr=0.01) for _ in range(2))
    found = train(wrapped, optimizer=one)
    assert len(one.optim.state_dict()["state"]) < 6
    whole: dict[str, Any] = {}
    for owner in range(dist.get_world_size()):
        one.consolidate_state_dict(owner)
        whole = one.state_dict() if owner == dist.get_rank() else whole
    other.load_state_dict(whole)
    return [*found, *train(wrapped, optimizer=other)]


def pipeline(name: str) -> list[Any]:
    """Four stages: one on each of four ranks, or two on each of two."""
    from torch.distributed import pipelining

    whole, me, size = model(4), dist.get_rank(), dist.get_world_size()
    stages: Any = [pipelining.PipelineStage(whole[k], k, 4, torch.device("cpu")) for k in range(me, 4, size)]
    given, loss = stages if len(stages) > 1 else stages[0], nn.functional.mse_loss
    schedule: Any = getattr(pipelining, name)(given, n_microbatches=4, loss_fn=loss)
    found, data = list[Any](), next(batches(1, seed=7))
    for _ in range(2):
        last = {"target": data.cos(), "losses": list[Any]()} if me == size - 1 else {}
        output = schedule.step(*[data] * (me == 0), **last)
        found += [*last.get("losses", []), *([output] if last else [])]
    return [*values(found), *gradients(whole)]


def transformer(sequence: bool) -> list[Any]:
    """An MLP of 18 numbers that is split; also its sequence, with a norm before it."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor import parallel as tp

    torch.manual_seed(0)
    block = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 18), nn.GELU(), nn.Linear(18, 24))
    ranks, layout = mesh_of(dist.get_world_size()), Shard(1) if sequence else Replicate()
    norm = {"0": tp.SequenceParallel(use_local_output=True)} if sequence else {}
    plan = {"1": tp.ColwiseParallel(input_layouts=layout), "3": tp.RowwiseParallel(output_layouts=layout), **norm}
    pieces = tp.parallelize_module(block, ranks, plan)
    data = torch.randn(2, 6, 24, generator=torch.Generator().manual_seed(1))
    got = pieces(distribute_tensor(data, ranks, [layout]).to_local())
    got.square().sum().backward()
    made = [DTensor.from_local(got, ranks, [layout]), *(parameter.grad for parameter in pieces.parameters())]
    return values(one.full_tensor() if isinstance(one, DTensor) else one for one in made)


def layouts() -> list[Any]:
    """A tensor on a mesh of 2 x 2, and sums in parts."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    me, both, whole, found = dist.get_rank(), mesh_of(2, 2), torch.arange(35.0).reshape(7, 5), []
    twice = distribute_tensor(whole, both, [Shard(0), Shard(0)])  # rows 2, 2, 2, 1
    for layout in ([Shard(1), Shard(0)], [Replicate(), Shard(1)], [Shard(0), Replicate()]):
        found += [(moved := twice.redistribute(both, layout)).to_local(), moved.full_tensor()]
    sums = DTensor.from_local(whole * 10**me, both, [Partial(), Partial()])
    part = whole.tensor_split([3], dim=1)[me % 2] * 10**me
    columns = DTensor.from_local(part, both, [Partial(), Shard(1)], shape=(7, 5), stride=(5, 1))
    found += [sums.redistribute(both, [Shard(0), Shard(1)]).full_tensor(), columns.full_tensor(), twice.to_local()]
    return values(found)


# Calls whose results are new tensors, and compiled ones. Of whole numbers, whose sums are exact.


def functional(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    from torch.distributed import _functional_collectives as calls

    world = dist.group.WORLD
    return (
        calls.all_reduce(tensor * 2, "sum", world) + 1,
        calls.all_reduce(tensor, "max", world) * 3,
        calls.all_gather_tensor(tensor + 1, 0, world) * 2,
        calls.all_gather_tensor(tensor, 1, world),
        calls.reduce_scatter_tensor(tensor * 3, "avg", 0, world) + 2,
        calls.all_to_all_single(tensor - 1, None, None, world) * 5,
        calls.broadcast(tensor, 1, world),
        *calls.all_reduce_coalesced([tensor, tensor * 4], "sum", world),
        *calls.all_gather_into_tensor_coalesced([tensor, tensor * 5], world),
        *calls.reduce_scatter_tensor_coalesced([tensor, tensor * 6], "sum", [0, 0], world),
    )


def in_place(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    size = dist.get_world_size()
    rows, columns = tensor.shape
    total, most = tensor * 2, tensor + 1
    dist.all_reduce(total)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    gathered = tensor.new_empty(rows * size, columns)
    dist.all_gather_into_tensor(gathered, total + tensor)
    part = tensor.new_empty(rows // size, columns)
    dist.reduce_scatter_tensor(part, gathered[:rows].contiguous())
    exchanged = torch.empty_like(tensor)
    dist.all_to_all_single(exchanged, tensor * 3)
    return total + 1, most, gathered * 2, part - 1, exchanged


def differentiable(tensor: torch.Tensor) -> tuple[torch.Tensor]:
    from torch.distributed import _functional_collectives as calls

    world = dist.group.WORLD
    parts = calls.reduce_scatter_tensor_autograd(tensor.square(), "sum", 0, world)
    whole = calls.all_gather_tensor_autograd(parts.square(), 0, world)
    return (calls.all_to_all_single_autograd(whole * tensor, None, None, world),)


def calls_of(how: tuple[Any, str]) -> list[Any]:
    """Call a function, plain or compiled, twice on other numbers, which it leaves as they are."""
    torch._dynamo.reset()
    function, backend = how
    run = torch.compile(function, backend=backend, fullgraph=True) if backend else function
    found: list[Any] = []
    for turn in range(2):
        tensor = torch.arange(12.0).reshape(6, 2) * (turn + 1) + 100 * dist.get_rank()
        if function is differentiable:
            tensor = (torch.arange(12.0).reshape(6, 2) % (turn + 5) + dist.get_rank()).requires_grad_()
        made = run(tensor)
        if function is differentiable:
            (made[0] * (1 + torch.arange(2) + dist.get_rank())).sum().backward()
        found += [*made, tensor, *([] if tensor.grad is None else [tensor.grad])]
    return values(found)


needs_a_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler, such as g++")


@pytest.mark.parametrize(
    ("shape", "program", "how"),
    [
        *((shape, fewer_batches, by_all) for shape in ("2", "1+1") for by_all in (True, False)),
        ("2", sparse_gradients, None),
        *(("2", hooked, name) for name in ("bf16", "fp16", "PowerSGD", "builtin", "builtin fp16")),
        ("2", compiled_ddp, "aot_eager"), pytest.param("2", compiled_ddp, "inductor", marks=needs_a_compiler),
        *((shape, fsdp1, kind) for shape in ("2", "1+1") for kind in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")),
        ("2x2", copies_of_shards, None), ("2", optimizer_in_pieces, None),
        *(("2x2", pipeline, name) for name in ("ScheduleGPipe", "Schedule1F1B")),
        *(("2", pipeline, f"Schedule{name}") for name in ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")),
        ("2", transformer, False), ("2", transformer, True), ("2x2", layouts, None),
        *((shape, calls_of, (functional, "")) for shape in ("2", "1+1")),
        *(("3", calls_of, (calls, backend)) for calls in (functional, in_place, differentiable)
          for backend in ("eager", "aot_eager")),
    ],
)  # fmt: skip
@as_over_gloo("shape")
def test_programs_learn_the_same(shape: str, program: Callable[..., list[Any]], how: Any) -> list[Any]:
    return program() if how is None else program(how)


# Checkpoints.


def stepped(one: nn.Module) -> tuple[nn.Module, Any]:
    """A model and its optimizer after a step in which no rank needs another."""
    optimizer = torch.optim.Adam(one.parameters(), lr=0.01)
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


@pytest.mark.parametrize("hosts", ["", "2+1"])
@pytest.mark.parametrize("later", [False, True], ids=["save", "async_save"])
def test_checkpoint_loads_on_fewer_ranks(ranks: TorchRanks, tmp_path: Path, later: bool, hosts: str) -> None:
    where = {"checkpoint_id": str(tmp_path)}

    def kept(made: tuple[nn.Module, Any]) -> dict[str, Any]:
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
