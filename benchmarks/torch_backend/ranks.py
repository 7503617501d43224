"""What ranks do: single calls and training steps of torch.distributed, on our backend and on Gloo, in turns."""

import contextlib
import datetime
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import unisono

from ..runs import GLOO, OURS
from ..turns import BareFutex, Rendezvous, Times, take_turns

CALLS = (
    "all_reduce", "all_reduce, async_op", "broadcast", "reduce", "all_gather_into_tensor", "all_gather", "gather",
    "scatter", "reduce_scatter_tensor", "reduce_scatter", "all_to_all_single", "all_to_all",
    "send and recv, there and back", "isend and irecv at once", "barrier",
)  # fmt: skip

LARGE = "DistributedDataParallel, 16 MiB of gradients"
KINDS = ("DistributedDataParallel", "fully_shard", LARGE)
ALONE = "without communication"
"""The model as it is, on each rank for itself; for LARGE, wrapped as for training together, with a hook that does
nothing: what DistributedDataParallel costs by itself is part of all figures."""

_WIDTH, _LAYERS, _BATCH, _LENGTH, _WORDS = 128, 4, 4, 32, 256
_LARGE_WIDTH, _LARGE_LAYERS, _LARGE_BATCH, _BUCKET_MIB = 512, 16, 64, 4

_TURN_S = 0.02


class Groups:
    """Two process groups of torch.distributed over the same ranks. meet, futex: barriers that use neither.

    meeting: where torch's ranks find each other, if not in the folder.
    """

    def __init__(self, folder: str, meeting: str = "") -> None:
        rank, ranks = unisono.get_rank(), unisono.get_world_size()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
        patience = datetime.timedelta(seconds=120)
        meeting = meeting or f"file://{folder}/torch"
        dist.init_process_group("unisono", meeting, timeout=patience, rank=rank, world_size=ranks)
        self.contenders: dict[str, Any] = {OURS: dist.group.WORLD, GLOO: dist.new_group(backend="gloo")}
        self.meet = Rendezvous(Path(folder, "meet"), rank, ranks)
        self.futex = BareFutex(Path(folder, "futex"), rank, ranks)


@contextlib.contextmanager
def two_backends(ranks: int, hosts: str | None = None) -> Iterator[Callable[..., list[Any]]]:
    """A world whose ranks have Groups. Yields what calls function(groups, *args) on each of them."""
    with tempfile.TemporaryDirectory() as folder, unisono.world(ranks, timeout_s=600, hosts=hosts) as world:
        yield lambda function, *args: world.run(_with_groups, folder, function, *args)


def _with_groups(folder: str, function: Callable[..., Any], *args: Any) -> Any:
    return function(_groups(folder), *args)


_groups = functools.cache(Groups)


def make_call(name: str, x: torch.Tensor, group: Any) -> tuple[Callable[[], object], list[torch.Tensor]]:
    """What makes one of CALLS, and the tensors that it writes on this rank.

    x: this rank's tensor, the larger one of its input and output. group: of two ranks.
    """
    me, (mine, other) = dist.get_rank(), (part.clone() for part in x.chunk(2))
    parts, whole, part = [mine, other], torch.zeros_like(x), torch.zeros_like(mine)
    both = list(torch.zeros_like(x).chunk(2))
    # The old names are those of torch 2.11; torch 2.13 warns of them.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def there_and_back() -> None:
        for sender in range(2):
            if me == sender:
                dist.send(x, 1 - me, group)
            else:
                dist.recv(whole, 1 - me, group)

    def both_at_once() -> None:
        for work in [dist.irecv(whole, 1 - me, group), dist.isend(x, 1 - me, group)]:
            if work is not None:
                work.wait()

    made: dict[str, tuple[Callable[[], object], list[torch.Tensor]]] = {
        "all_reduce": (lambda: dist.all_reduce(x, group=group), [x]),
        "all_reduce, async_op": (lambda: dist.all_reduce(x, group=group, async_op=True).wait(), [x]),
        "broadcast": (lambda: dist.broadcast(x, 0, group), [x]),
        "reduce": (lambda: dist.reduce(x, 0, group=group), [] if me else [x]),
        "all_gather_into_tensor": (lambda: all_gather(whole, mine, group), [whole]),
        "all_gather": (lambda: dist.all_gather(both, mine, group), both),
        "gather": (lambda: dist.gather(mine, None if me else both, 0, group), [] if me else both),
        "scatter": (lambda: dist.scatter(part, None if me else parts, 0, group), [part]),
        "reduce_scatter_tensor": (lambda: reduce_scatter(part, x, group=group), [part]),
        "reduce_scatter": (lambda: dist.reduce_scatter(part, parts, group=group), [part]),
        "all_to_all_single": (lambda: dist.all_to_all_single(whole, x, group=group), [whole]),
        "all_to_all": (lambda: dist.all_to_all(both, parts, group), both),
        "send and recv, there and back": (there_and_back, [whole]),
        "isend and irecv at once": (both_at_once, [whole]),
        "barrier": (lambda: dist.barrier(group), []),
    }
    return made[name]


def measure_calls(groups: Groups, name: str, nbytes: int, turns: int) -> tuple[Times, bool]:
    """Seconds per call on this rank, and whether both contenders have written the same bits."""
    calls, written = {}, []
    for contender, group in groups.contenders.items():
        x = torch.arange(nbytes // 4, dtype=torch.float32) % 1000 + 10 * dist.get_rank()
        calls[contender], outputs = make_call(name, x, group)
        calls[contender]()
        written.append([output.clone() for output in outputs])
        x.zero_()  # sums of sums would grow
    same = all(torch.equal(a, b) for a, b in zip(*written, strict=True))
    return take_turns(calls, groups.meet, turns, _TURN_S), same


class Trainer:
    """A model that is trained together with other ranks, with its optimizer and this rank's data."""

    def __init__(self, optimizer: torch.optim.Optimizer, loss: Callable[[torch.Generator], Any]) -> None:
        self._optimizer, self._loss = optimizer, loss
        self._generator = torch.Generator().manual_seed(dist.get_rank())

    def step(self) -> float:
        self._optimizer.zero_grad()
        loss = self._loss(self._generator)
        loss.backward()
        self._optimizer.step()
        return float(loss.item())


def make_trainer(kind: str, group: Any) -> Trainer:
    """What trains a model of this kind on a group; None: without communication."""
    return _large(group) if kind == LARGE else _transforming(kind, group)


def _transforming(kind: str, group: Any) -> Trainer:
    """A transformer that guesses the next word, wrapped for one group. About 860,000 parameters."""
    torch.manual_seed(0)  # the same start on all ranks
    embed = nn.Embedding(_WORDS, _WIDTH)
    layers = [nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, dropout=0.0, batch_first=True) for _ in range(_LAYERS)]
    model: Any = nn.Sequential(embed, *layers, nn.Linear(_WIDTH, _WORDS))
    if group is not None and kind == "fully_shard":
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif group is not None:
        model = nn.parallel.DistributedDataParallel(model, process_group=group)

    def loss(generator: torch.Generator) -> Any:
        words = torch.randint(_WORDS, (_BATCH, _LENGTH + 1), generator=generator)
        return nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    return Trainer(torch.optim.AdamW(model.parameters(), lr=0.001), loss)


def _large(group: Any) -> Trainer:
    """Linear layers whose gradients take long to send. Without a group: on that of all ranks, with an empty hook."""
    torch.manual_seed(0)
    layers = [nn.Linear(_LARGE_WIDTH, _LARGE_WIDTH, bias=False) for _ in range(_LARGE_LAYERS)]
    model: Any = nn.parallel.DistributedDataParallel(
        nn.Sequential(*layers), process_group=group, bucket_cap_mb=_BUCKET_MIB, gradient_as_bucket_view=True
    )
    if group is None:
        model.register_comm_hook(None, lambda _, bucket: _done(bucket.buffer()))
    return Trainer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda generator: model(torch.randn(_LARGE_BATCH, _LARGE_WIDTH, generator=generator)).square().mean(),
    )


def _done(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


def measure_steps(groups: Groups, kind: str, turns: int) -> tuple[Times, dict[str, list[float]]]:
    """Train a copy of the model for each contender on this rank: seconds per step, and all losses."""
    trainers = {name: make_trainer(kind, group) for name, group in {**groups.contenders, ALONE: None}.items()}
    times: Times = {name: [] for name in trainers}
    losses: dict[str, list[float]] = {name: [] for name in trainers}
    for turn in range(turns + 2):
        for name, trainer in trainers.items():
            groups.meet.barrier()
            begin = time.perf_counter()
            losses[name].append(trainer.step())
            if turn >= 2:  # the first ones make buffers
                times[name].append(time.perf_counter() - begin)
    return times, losses
