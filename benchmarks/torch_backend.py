"""torch.distributed on our backend and on Gloo, in the same ranks: `python -m benchmarks.torch_backend`.

Single calls, and training steps.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from torch import nn

from unisono.base.units import parse_bytes

from .ranks import Groups, Ranks, places
from .runs import GLOO, HOSTS, OURS, TORCH, Cell, Output, Table, begin, hand_in, of_times
from .turns import Times, background, slowest_rank, take_turns

_HOW = """\
float32. A time is that of one call out of a batch, back to back, of the slower rank; a size counts the larger tensor of
a rank. Both backends have their process groups in the same processes and take turns. Every result is compared with
Gloo's, bit by bit; over several hosts, where sums have another order, losses to within 1e-4. Background processes
compute all the time."""
_STEPS = """\
The models: a small transformer; then 16 linear layers of 512 in buckets of 4 MiB, for which "without communication" is
DistributedDataParallel with a hook that does nothing."""

CALLS = (
    "all_reduce", "all_reduce, async_op", "broadcast", "reduce", "all_gather_into_tensor", "all_gather", "gather",
    "scatter", "reduce_scatter_tensor", "reduce_scatter", "all_to_all_single", "all_to_all",
    "send and recv, there and back", "isend and irecv at once", "barrier",
)  # fmt: skip

LARGE = "DistributedDataParallel, 16 MiB of gradients"
KINDS = ("DistributedDataParallel", "fully_shard", LARGE)
ALONE = "without communication"

_WIDTH, _LAYERS, _BATCH, _LENGTH, _WORDS = 128, 4, 4, 32, 256
_LARGE_WIDTH, _LARGE_LAYERS, _LARGE_BATCH, _BUCKET_MIB = 512, 16, 64, 4

_TURN_S = 0.02
_CLOSE, _UNTIMED = 1e-4, 2


def make_call(name: str, x: torch.Tensor, group: Any) -> tuple[Callable[[], object], list[torch.Tensor]]:
    """What makes one of CALLS, and the tensors that it writes on this rank.

    x: this rank's tensor, the larger one of its input and output. group: of two ranks.
    """
    me, (mine, other) = dist.get_rank(), (part.clone() for part in x.chunk(2))
    parts, whole, part = [mine, other], torch.zeros_like(x), torch.zeros_like(mine)
    both = list(torch.zeros_like(x).chunk(2))
    single: Any = dist  # torch's stubs omit the newer names

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
        "all_gather_into_tensor": (lambda: single.all_gather_single(whole, mine, group), [whole]),
        "all_gather": (lambda: dist.all_gather(both, mine, group), both),
        "gather": (lambda: dist.gather(mine, None if me else both, 0, group), [] if me else both),
        "scatter": (lambda: dist.scatter(part, None if me else parts, 0, group), [part]),
        "reduce_scatter_tensor": (lambda: single.reduce_scatter_single(part, x, group=group), [part]),
        "reduce_scatter": (lambda: dist.reduce_scatter(part, parts, group=group), [part]),
        "all_to_all_single": (lambda: dist.all_to_all_single(whole, x, group=group), [whole]),
        "all_to_all": (lambda: dist.all_to_all(both, parts, group), both),
        "send and recv, there and back": (there_and_back, [whole]),
        "isend and irecv at once": (both_at_once, [whole]),
        "barrier": (lambda: dist.barrier(group), []),
    }
    return made[name]


def measure_calls(groups: Groups, name: str, nbytes: int, turns: int, busy: int) -> tuple[Times, bool]:
    """Seconds per call on this rank, and whether both contenders have written the same bits."""
    calls, written = {}, []
    for contender, group in groups.contenders.items():
        x = torch.arange(nbytes // 4, dtype=torch.float32) % 1000 + 10 * dist.get_rank()
        calls[contender], outputs = make_call(name, x, group)
        calls[contender]()
        written.append([output.clone() for output in outputs])
        x.zero_()  # sums of sums would grow
    same = all(torch.equal(a, b) for a, b in zip(*written, strict=True))
    with background(busy, groups.meet.rank):
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


def make_step(kind: str, group: Any) -> Callable[[], float]:
    """What makes a step of this kind on a group, and returns the loss; group: None for one without communication."""
    return (_large(group) if kind == LARGE else _transforming(kind, group)).step


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


def measure_steps(groups: Groups, kind: str, turns: int, busy: int) -> tuple[Times, dict[str, list[float]]]:
    """Make steps of each contender on this rank: seconds per step, and all losses."""
    steps = {name: make_step(kind, group) for name, group in {**groups.contenders, ALONE: None}.items()}
    times: Times = {name: [] for name in steps}
    losses: dict[str, list[float]] = {name: [] for name in steps}
    with background(busy, groups.meet.rank):
        for turn in range(-_UNTIMED, turns):
            for name, step in steps.items():
                groups.meet.barrier()
                begin = time.perf_counter()
                losses[name].append(step())
                if turn >= 0:
                    times[name].append(time.perf_counter() - begin)
    return times, losses


def _differ(one: list[float], other: list[float], several: bool) -> bool:
    """Do the losses of two contenders differ by more than another order of summing explains?"""
    close = _CLOSE if several else 0.0
    return any(abs(a - b) > close * max(abs(a), abs(b)) for a, b in zip(one, other, strict=True))


def bench_torch(
    *,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks on this host. Calls are measured with two.")] = "2",
    hosts: Annotated[str, typer.Option(help="In place of ranks: hosts in namespaces, such as 2x1,2x2. As root.")] = "",
    rates: Annotated[str, typer.Option(help="Of each link between hosts, both ways; none: no limit.")] = "none",
    busy: Annotated[str, typer.Option(help="Numbers of background processes that compute.")] = "0",
    sizes: Annotated[str, typer.Option(help="Bytes of a rank's larger tensor, multiples of 8.")] = "8,64KiB,4MiB",
    calls: Annotated[str, typer.Option(help="Which calls, separated by `;`; none: no calls.")] = ";".join(CALLS),
    kinds: Annotated[str, typer.Option(help=f"Which steps, by number: {', '.join(KINDS)}.")] = "0,1,2",
    turns: Annotated[int, typer.Option(min=1, help="How often each contender has its turn.")] = 9,
    steps: Annotated[int, typer.Option(min=1, help="Training steps that are timed.")] = 30,
    output: Output = None,
) -> None:
    """Measure torch.distributed on our backend beside Gloo: calls, then steps. Fails if a result differs."""
    run = begin("torch.distributed", _HOW, _STEPS, code=HOSTS if hosts else TORCH)
    names = [name for name in calls.split(";") if name != "none"]
    of_calls, of_steps = dict[tuple[Cell, ...], Times](), dict[tuple[Cell, ...], Times]()
    labels, losses, differ = list[str](), list[list[Cell]](), 0
    for place in places(ranks, hosts, rates, busy):
        labels, where = [*place.labels], [*place.labels.values()]
        with ExitStack() as ends:
            on = Ranks(place, ends)
            for name in names if place.hosts.ranks == 2 and not hosts else ():
                for nbytes in map(parse_bytes, sizes.split(",") if name != "barrier" else ["8"]):
                    seen = on.run(measure_calls, name, nbytes, turns, place.busy)
                    of_calls[name, *where, nbytes] = slowest_rank([times for times, _ in seen])
                    differ += not all(same for _, same in seen)
            for kind in (KINDS[int(number)] for number in kinds.split(",") if number):
                made = on.run(measure_steps, kind, steps, place.busy)
                of_steps[kind, *where] = slowest_rank([times for times, _ in made])
                ours, gloo = (made[0][1][who] for who in (OURS, GLOO))
                differs = _differ(ours, gloo, bool(hosts))
                differ += differs
                losses.append([kind, *where, steps, ours[-1], gloo[-1], "no" if differs else "yes"])
    run.how.append(f"Calls and trainings whose results differ from Gloo's: {differ}.")
    run.tables = [
        of_times("calls", ["call", *labels, "bytes"], of_calls),
        of_times("training steps", ["training", *labels], of_steps),
        Table("loss of the last step", ["training", *labels, "steps", OURS, GLOO, "all losses equal"], losses),
    ]
    hand_in(run, output)
    if differ:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(bench_torch)
