"""Faults in groups of Gloo or NCCL, with `UNISONO_WATCH=1` and without: `python -m benchmarks.faults.watched`."""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from unisono.base.units import format_seconds

from ..runs import Output, Table, begin, hand_in
from .scene import FAULTS, LIMIT_S, ONE_GPU, RANKS, VICTIM, Said, Seen, play

_HOW = f"""\
{RANKS} ranks on one host, each a program of its own: an `all_reduce` of 100 KB, then another one, instead of
which something happens to rank {VICTIM}, then a `barrier`. "step of DDP": two backward passes of
DistributedDataParallel take the place of both. The time-out of the group is {LIMIT_S:.0f} s. torch's default is 30
minutes, and what comes after {LIMIT_S:.0f} s below would come after these. The programs are the same; some have
`UNISONO_WATCH=1` in their environment. Times run from the fault to the line on standard error."""
_HOW_NCCL = f"""\
The ranks share one GPU, each as a host of its own to NCCL: `NCCL_HOSTID` is the rank, {
    ", ".join(f"`{name}={value}`" for name, value in ONE_GPU.items())
}. After each call, the program waits for the GPU. `TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC`: by default, what
torch says of an error or a time-out would come a minute later."""

_CODE = ("src/unisono/integrations/torch", "src/unisono/observe", "src/unisono/ranks")
_LONGEST = 330

Scenes = Mapping[str, tuple[Mapping[int, Seen], Mapping[int, Seen]]]
"""Fault -> what the ranks have said without watching, and with it."""


def tables(scenes: Scenes) -> list[Table]:
    """What ranks other than the victim have said in short, and what each rank has said."""
    short = [
        [fault, watched, *_short(ranks)]
        for fault, both in scenes.items()
        for watched, ranks in zip(("no", "yes"), both, strict=True)
    ]
    victim = f"rank {VICTIM}"
    titles = [victim, "watched", "first line", f"first line that names {victim}", "last error"]
    each = Table("what each rank says", [victim, "rank", "not watched", "watched"], list(_rows(scenes)))
    return [Table(f"ranks 0 to {VICTIM - 1}", titles, short), each]


def _short(ranks: Mapping[int, Seen]) -> Iterator[str]:
    others = [seen for rank, seen in ranks.items() if rank != VICTIM]
    words = [said for seen in others for said in seen if said]
    names = [said for said in words if re.search(rf"\brank {VICTIM}\b", said.line)]
    for said in (words, names):
        yield _after(min(said)) if said else "never"
    yield _after(max(seen.end for seen in others if seen.end)) if all(seen.end for seen in others) else "never"


def _after(said: Said) -> str:
    return format_seconds(said.seconds)


def _rows(scenes: Scenes) -> Iterator[list[str]]:
    for fault, both in scenes.items():
        for rank in range(RANKS):
            yield [fault, f"{rank}", *(_cell(ranks[rank]) for ranks in both)]


def _cell(seen: Seen) -> str:
    ended = [seen.end] if seen.end else []
    told = [seen.told] if seen.told else []
    lines = [f"{_after(said)}: {_quoted(said.line)}" if said.seconds else said.line for said in (*told, *ended)]
    return "<br>".join([*lines, *([] if seen.end else ["has not ended"])])


def _quoted(line: str) -> str:
    """Without the folder of this repository."""
    text = " ".join(line.replace(f"{Path.cwd()}/", "").split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " …"


def bench_watched(
    *,
    faults: Annotated[str, typer.Option(help="Which faults.")] = ",".join(FAULTS),
    backend: Annotated[str, typer.Option(help="gloo, or nccl: all ranks on one GPU.")] = "gloo",
    output: Output = None,
) -> None:
    """Let each thing happen to a rank, and see what each rank says, watched and not."""
    how = [_HOW, _HOW_NCCL] if backend == "nccl" else [_HOW]
    name = "NCCL" if backend == "nccl" else "Gloo"
    run, scenes = begin(f"Groups of {name}, watched and not", *how, code=_CODE), {}
    for fault in faults.split(","):
        try:
            without, with_it = (play(fault, watched=way, backend=backend) for way in (False, True))
        except RuntimeError as error:
            print(f"{fault}: it has not begun:\n{error}", file=sys.stderr)
            continue
        scenes[fault] = without, with_it
        print(fault, file=sys.stderr)
    run.tables = tables(scenes)
    hand_in(run, output)


if __name__ == "__main__":
    typer.run(bench_watched)
