"""A model whose layers are split among ranks, as it serves: `python -m benchmarks.serving`.

Its calls, between products of matrices whose time changes from call to call and from rank to rank; and a small Llama.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer

from unisono.base.units import parse_bytes

from .ranks import Groups, Ranks, places
from .runs import TORCH, Cell, Output, begin, hand_in, of_times
from .turns import Times, background, slowest_rank, take_turns

_HOW = """\
A time is that of a product and the call behind it, out of a batch of such pairs, of the slowest rank. A product
multiplies 1 to 16 rows by a matrix of 256 × 256 in float32; each rank draws the numbers of rows for itself.
"without communication" makes the products alone. A size is that of a rank's larger tensor. Tensors are private, as a
model has them; all_reduce is in place. All contenders serve the same processes, in turns, and their results are
compared. DeepSpeed's is its operator for CPUs, `inference_all_reduce`, which is compiled when it is first used."""

_TOKENS = """\
The Llama has 8 layers of width 512 with random weights, in bfloat16, which torch's parallelize_module splits among the
ranks: two calls of all_reduce a layer, of 1 KiB. It decodes 200 tokens, one at a time. A time is that of a token, of
the slowest rank. Compiled: by torch.compile."""

DEEPSPEED = "DeepSpeed"
ALONE = "without communication"
CALLS = ("all_reduce", "all_gather_into_tensor")
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_ROWS, _WIDTH, _DRAWN = 16, 256, 64
_TURN_S = 0.05
_LAYERS, _HIDDEN, _WORDS, _LENGTH = 8, 512, 1024, 200
_STYLES = ("plain", "compiled")


def measure(groups: Groups, name: str, dtype: str, nbytes: int, turns: int, busy: int) -> tuple[Times, bool]:
    """Seconds per product and call on this rank, and whether all contenders have the same result, up to rounding."""
    calls = {ALONE: _pairs(None)}
    results = []
    for contender, group in _contenders(groups, name).items():
        whole = torch.zeros(nbytes // 2, dtype=_DTYPES[dtype])
        call, result = _make(name, whole, group)
        call()
        results.append(result.clone().float())
        whole.zero_()  # sums of sums would grow
        calls[contender] = _pairs(call)
    same = all(torch.allclose(results[0], result, rtol=0.02) for result in results[1:])
    with background(busy, groups.meet.rank):
        return take_turns(calls, groups.meet, turns, _TURN_S), same


def _contenders(groups: Groups, name: str) -> dict[str, Any]:
    operator = _deepspeed() if name == "all_reduce" else None
    return groups.contenders | ({} if operator is None else {DEEPSPEED: operator})


def _make(name: str, whole: torch.Tensor, group: Any) -> tuple[Callable[[], object], torch.Tensor]:
    """What makes the call, and the tensor that it writes. group: a process group, or DeepSpeed's operator."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    values = torch.arange(whole.numel()) % 128 / 64 + rank
    if name == "all_reduce":
        whole.copy_(values)
        if callable(group):
            return lambda: group(whole), whole
        return lambda: dist.all_reduce(whole, group=group), whole
    part = values.to(whole.dtype).chunk(ranks)[rank].clone()
    single: Any = dist  # torch's stubs omit the newer names
    return lambda: single.all_gather_single(whole, part, group), whole


def _pairs(call: Callable[[], object] | None) -> Callable[[], None]:
    """What makes the next product, and then the call."""
    drawn = torch.randint(1, _ROWS + 1, (_DRAWN,), generator=torch.Generator().manual_seed(dist.get_rank()))
    matrix = torch.rand(_WIDTH, _WIDTH)
    rows: Iterator[torch.Tensor] = cycle([torch.rand(int(number), _WIDTH) for number in drawn])

    def pair() -> None:
        torch.mm(next(rows), matrix)
        if call:
            call()

    return pair


def _deepspeed() -> Callable[[torch.Tensor], object] | None:
    """DeepSpeed's all_reduce over shared memory between the ranks of this host; None where it is not installed."""
    try:
        from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder
        from torch import ops  # as an attribute of torch it could not be sent to ranks
    except ImportError:
        return None
    os.environ |= {
        "LOCAL_SIZE": str(dist.get_world_size()),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(os.getppid()),
    }
    operator = ShareMemCommBuilder().load(verbose=False)
    operator.initialize(dist.get_world_size(), dist.get_rank())
    dist.barrier()
    made: Callable[[torch.Tensor], object] = ops.deepspeed.inference_all_reduce_
    return made


def decode(groups: Groups, style: str, turns: int, busy: int) -> tuple[Times, bool]:
    """Seconds per token on this rank, in turns; and whether the tokens of both contenders are the same."""
    tokens = {name: _tokens(name, group, style) for name, group in groups.contenders.items()}
    times: Times = {name: [] for name in tokens}
    said: dict[str, list[int]] = {name: [] for name in tokens}
    with background(busy, groups.meet.rank):
        for turn in range(-1, turns):
            for _ in range(_LENGTH):
                for name, words in tokens.items():
                    groups.meet.barrier()
                    begin = time.perf_counter()
                    said[name].append(next(words))
                    if turn >= 0:
                        times[name].append(time.perf_counter() - begin)
    return times, len(set(map(tuple, said.values()))) == 1


def _tokens(contender: str, group: Any, style: str) -> Iterator[int]:
    """What a small random Llama says, a token at a time: again and again the same _LENGTH ones."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=_LAYERS, hidden_size=_HIDDEN, intermediate_size=3 * _HIDDEN, vocab_size=_WORDS,
        num_attention_heads=8, num_key_value_heads=8,
    )  # fmt: skip
    model = LlamaForCausalLM(config).bfloat16().eval()
    split: dict[str, Any] = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    split |= {f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    plan = split | {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=(contender,))  # torch takes meshes of one name for one
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)
    forward = torch.compile(model, fullgraph=False) if style == "compiled" else model
    with torch.inference_mode():
        while True:
            cache = StaticCache(config, max_cache_len=_LENGTH)
            word = torch.zeros(1, 1, dtype=torch.long)
            for at in range(_LENGTH):
                word = forward(word, cache=cache, cache_position=torch.tensor([at])).logits.argmax(-1)
                yield int(word)


def bench_serving(
    *,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks.")] = "2,4",
    busy: Annotated[str, typer.Option(help="Numbers of background processes that compute.")] = "0,2",
    sizes: Annotated[str, typer.Option(help="Bytes of a rank's larger tensor.")] = "8KiB,32KiB,128KiB,256KiB,1MiB",
    calls: Annotated[str, typer.Option(help="Which calls.")] = ",".join(CALLS),
    dtypes: Annotated[str, typer.Option(help="Of the tensors.")] = ",".join(_DTYPES),
    styles: Annotated[str, typer.Option(help="Of the Llama; none: no Llama.")] = ",".join(_STYLES),
    turns: Annotated[int, typer.Option(min=1, help="How often each contender has its turn.")] = 15,
    output: Output = None,
) -> None:
    """Measure calls between products of matrices beside Gloo and DeepSpeed. Fails if a result differs."""
    run, differ = begin("a model that serves", _HOW, _TOKENS, code=TORCH), 0
    found, of_tokens = dict[tuple[Cell, ...], Times](), dict[tuple[Cell, ...], Times]()
    labels: list[str] = []
    for place in places(ranks, "", "", busy):
        labels = [*place.labels]
        with ExitStack() as ends:
            on = Ranks(place, ends)
            for style in (each for each in styles.split(",") if each != "none" and not place.busy):
                seen = on.run(decode, style, turns // 5, place.busy)
                of_tokens[style, *place.labels.values()] = slowest_rank([times for times, _ in seen])
                differ += not all(same for _, same in seen)
            for name in (each for each in calls.split(",") if each != "none"):
                for dtype in dtypes.split(","):
                    for nbytes in map(parse_bytes, sizes.split(",")):
                        seen = on.run(measure, name, dtype, nbytes, turns, place.busy)
                        found[name, dtype, *place.labels.values(), nbytes] = slowest_rank([times for times, _ in seen])
                        differ += not all(same for _, same in seen)
    run.how.append(f"Calls whose results differ: {differ}.")
    run.tables = [
        of_times("calls", ["call", "dtype", *labels, "bytes"], found),
        of_times("tokens", ["model", *labels], of_tokens),
    ]
    hand_in(run, output)
    if differ:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(bench_serving)
