"""What each library does with every call, dtype and op: `python -m benchmarks.supported_calls`.

Outcomes are tables: rows are calls and ops, columns dtypes; what has equal outcomes is written once. docs/calls.md
shows them.
"""

import contextlib
import functools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import torch
import torch.distributed
import typer

import unisono
from unisono.base.errors import WaitTimeout
from unisono.tools.cli.shared.timed_calls import start_gloo

from ..mpi import Launch, MpiJob, find, make_call
from ..runs import GLOO, OPEN_MPI, OURS, Output, Table, begin, hand_in
from .attempts import (
    ALL_DTYPES,
    COMBINING,
    FACTORS,
    OPS,
    RANKS,
    SITUATIONS,
    TRIES,
    Attempt,
    Library,
    NoResult,
    Try,
    is_number,
    outcome,
    outcomes,
)

_DIST: Any = torch.distributed

_GLOO_S, _MPI_S = 2.0, 5.0
"""A call that takes longer hangs: Gloo would wait for 30 minutes, an MPI for ever."""


def try_torch_like(name: str, tries: Sequence[Try]) -> list[str]:
    """The outcome of each try with unisono or Gloo."""
    return outcomes(tries, functools.partial(_torch_like, name))


def try_mpi(launch: Launch, tries: Sequence[Try]) -> list[str]:
    """The outcome of each try with an MPI. Its jobs take long to start, and so go on after a wrong result."""

    @contextlib.contextmanager
    def job() -> Iterator[Attempt]:
        with contextlib.closing(MpiJob(launch, RANKS, _MPI_S)) as ranks:
            yield lambda one: ranks.run(lambda: outcome(one, _Mpi()))

    return outcomes(tries, job, wrong_spoils=False)


@contextlib.contextmanager
def _torch_like(name: str) -> Iterator[Attempt]:
    with tempfile.TemporaryDirectory() as folder, unisono.World(RANKS, timeout_s=30) as world:
        yield lambda one: world.run(lambda: outcome(one, _TorchLike(name, folder)))


class _TorchLike(Library):
    def __init__(self, name: str, folder: str) -> None:
        self.name, self.rank = name, unisono.get_rank()
        self._library: Any = unisono
        if name == GLOO:
            start_gloo(folder, _GLOO_S)
            self._library = _DIST

    def _perform(self, call: str, x: torch.Tensor, y: torch.Tensor | None, op: str, root: int) -> None:
        name = {one: f"{one}_single" for one in ("all_gather", "reduce_scatter", "all_to_all")}.get(call, call)
        if not hasattr(self._library, name):
            raise NoResult("no call")
        passed: list[Any] = [x] if y is None else [y, x]
        if call == "scatter":
            passed = [y, list(x.chunk(RANKS)) if self.rank == root else None]
        elif call == "gather":
            passed = [x, list(y.chunk(RANKS)) if y is not None and self.rank == root else None]
        if call in ("broadcast", "reduce", "scatter", "gather"):
            passed.append(root)
        if call in COMBINING:
            passed.append(self._op(op))
        getattr(self._library, name)(*passed)

    def _op(self, op: str) -> Any:
        factor = FACTORS[self.rank]
        if op == "custom":
            if self.name == GLOO:
                raise NoResult("no op")
            return unisono.make_op(OPS["custom"])
        if op == "premul_sum":
            return _DIST._make_nccl_premul_sum(factor) if self.name == GLOO else unisono.premul_sum(factor)  # noqa: SLF001
        return getattr(self._library.ReduceOp, op.upper())

    def _gather_blocks(self, blocks: Sequence[torch.Tensor] | None, x: torch.Tensor) -> Sequence[torch.Tensor]:
        made: Sequence[torch.Tensor] | None = self._library.all_gather(blocks, x)
        return made or blocks or []

    def _word(self, error: Exception) -> str:
        return "hangs" if isinstance(error, WaitTimeout) or "imed out" in str(error) else "raises"


class _Mpi(Library):
    """By way of mpi4py, which takes torch tensors as buffers."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi: Any = MPI
        self.rank = int(MPI.COMM_WORLD.Get_rank())

    def _perform(self, call: str, x: torch.Tensor, y: torch.Tensor | None, op: str, root: int) -> None:
        combining: Any = self._op(op, x.dtype) if call in COMBINING else None
        try:
            make_call(call, x, y, combining, root)()
        finally:
            if op == "custom" and call in COMBINING:
                combining.Free()  # there can only be few

    def _op(self, op: str, dtype: torch.dtype) -> Any:
        if op == "custom":
            return self._mpi.Op.Create(_custom(dtype))
        name = {"product": "PROD"}.get(op, op.upper())
        if not hasattr(self._mpi, name):
            raise NoResult("no op")
        return getattr(self._mpi, name)

    def _gather_blocks(self, blocks: Sequence[torch.Tensor] | None, x: torch.Tensor) -> Sequence[torch.Tensor]:
        if blocks is None:
            raise NoResult("no call")
        sizes = [block.numel() for block in blocks]
        whole = torch.zeros(sum(sizes))
        self._mpi.COMM_WORLD.Allgatherv(x, [whole, sizes])
        return list(whole.split(sizes))  # type: ignore[no-untyped-call]

    def _word(self, error: Exception) -> str:
        if isinstance(error, KeyError):  # mpi4py looks for an MPI type by the letter of the buffer's
            return "no type"
        return "no buffer" if isinstance(error, BufferError | TypeError) else "raises"


def _custom(dtype: torch.dtype) -> Any:
    """OPS["custom"] on what MPI passes as memory; nothing, where torch knows no numbers: an exception would end MPI."""
    wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64

    def function(x: Any, y: Any, _type: Any) -> None:
        if is_number(dtype):
            before, after = (torch.frombuffer(memory, dtype=dtype) for memory in (x, y))
            after.copy_(OPS["custom"](before.to(wide), after.to(wide)))

    return function


def tables(outcomes: Mapping[str, Sequence[str]]) -> list[Table]:
    """A table of dtypes for each library, and one of SITUATIONS for all."""
    places = {situation: TRIES.index(Try(situation)) for situation in SITUATIONS}
    rows = [[situation, *(found[place] for found in outcomes.values())] for situation, place in places.items()]
    of_dtypes = [dtype_table(name, dict(zip(TRIES, found, strict=True))) for name, found in outcomes.items()]
    return [*of_dtypes, Table("situations", ["call", *outcomes], rows)]


def dtype_table(library: str, found: Mapping[Try, str]) -> Table:
    """A table of the outcomes of all calls with an op and a dtype."""
    pairs = list(dict.fromkeys((one.call, one.op) for one in found if one.dtype))
    columns: dict[tuple[str, ...], list[str]] = {}
    for dtype in ALL_DTYPES:
        columns.setdefault(tuple(found[Try(call, dtype, op)] for call, op in pairs), []).append(dtype)
    rows: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for k, (call, op) in enumerate(pairs):
        cells = tuple(column[k] for column in columns)
        rows.setdefault(cells, {}).setdefault(call, []).append(op)
    lines: list[list[str]] = []
    for cells, ops_of in rows.items():
        calls_of: dict[str, list[str]] = {}
        for call, ops in ops_of.items():
            calls_of.setdefault(", ".join(ops), []).append(call)
        lines += [[", ".join(calls), ops, *cells] for ops, calls in calls_of.items()]
    return Table(library, ["call", "op", *(", ".join(dtypes) for dtypes in columns.values())], lines)


def calls(
    *,
    mpi: Annotated[bool, typer.Option(help="Try Open MPI too, where installed.")] = True,
    output: Output = None,
) -> None:
    """Try every call with every dtype and op on three ranks: ours, Gloo and MPI. Takes some minutes."""
    run = begin(
        "What the calls take", "Every call with every dtype and op, on three ranks.", code=["src/unisono/calls"]
    )
    outcomes = {name: try_torch_like(name, TRIES) for name in (OURS, GLOO)}
    found = find(OPEN_MPI, RANKS) if mpi else "not asked for"
    if isinstance(found, str):
        run.how.append(f"Open MPI: {found}")
    else:
        outcomes[OPEN_MPI] = try_mpi(found, TRIES)
    run.tables = tables(outcomes)
    hand_in(run, output)


if __name__ == "__main__":
    typer.run(calls)
