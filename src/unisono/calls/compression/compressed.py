"""`Compression`: all_reduce with rounded values between hosts; `compress_hook`: the same for DistributedDataParallel.

Rounded values are whole blocks of float32, in rows of bytes. Each row is sent alone. Rounding errors are kept.

Annotations are objects in this file, because torch checks the annotations of a hook.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not in torch's __all__
from torch.futures import Future

from ...base.errors import ArgumentError, DTypeError, UnisonoError
from ...engine.tensors import mark_written, needed_by_autograd
from ...ranks.group.group import Group
from ...ranks.group.initialize import group_or_default
from ..arguments import check_tensor
from ..collectives.all_gather import all_gather, all_gather_single
from ..collectives.all_reduce import all_reduce
from ..collectives.all_to_all import all_to_all_single
from ..collectives.reduce_scatter import reduce_scatter
from ..dispatch import Call
from ..groups import split

_OPS = ("sum", "avg")

BLOCK = 256
"""Values that share a scale."""

_SCALE_BYTES, _MOST = 4, 127.0


class Rounding(Protocol):
    """A way to round. Infinite values and NaN stay so, or make their whole block so."""

    def nbytes(self, blocks: int) -> int:
        """The bytes of this number of blocks."""
        ...

    def pack(self, values: torch.Tensor) -> torch.Tensor:
        """Rows of float32 as rows of bytes."""
        ...

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """Rows of bytes as rows of float32."""
        ...


class _Bfloat16:
    """The upper half of each float32, rounded to nearest."""

    def nbytes(self, blocks: int) -> int:
        return blocks * BLOCK * 2

    def pack(self, values: torch.Tensor) -> torch.Tensor:
        return values.bfloat16().view(torch.uint8)

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        return packed.view(torch.bfloat16).float()


class _Int8:
    """For each block a scale, the greatest magnitude / 127; then multiples of the scales, -127 to 127."""

    def nbytes(self, blocks: int) -> int:
        return blocks * (BLOCK + _SCALE_BYTES)

    def pack(self, values: torch.Tensor) -> torch.Tensor:
        rows, blocks = len(values), values.shape[1] // BLOCK
        packed = torch.empty(rows, self.nbytes(blocks), dtype=torch.uint8, device="cpu")
        scales, steps = self._parts(packed)
        of_blocks = values.view(rows, blocks, BLOCK)
        scales.copy_(of_blocks.abs().amax(2)).div_(_MOST)
        least = torch.finfo(torch.float32).tiny  # in blocks of zeros the scale is 0, and any divisor is right
        counts = of_blocks / scales.clamp_min(least).unsqueeze(2)
        steps.copy_(counts.round_().clamp_(-_MOST, _MOST).nan_to_num_(0.0))
        return packed

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        scales, steps = self._parts(packed)
        return (steps.float() * scales.unsqueeze(2)).flatten(1)

    def _parts(self, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scales and multiples of rows of bytes: views, by row, block and value."""
        rows, blocks = len(packed), packed.shape[1] // self.nbytes(1)
        scales = packed[:, : blocks * _SCALE_BYTES].view(torch.float32)
        return scales, packed[:, blocks * _SCALE_BYTES :].view(torch.int8).view(rows, blocks, BLOCK)


ROUNDINGS: Mapping[str, Rounding] = {"bf16": _Bfloat16(), "int8": _Int8()}
"""The user's name of a rounding -> the rounding."""


@dataclass(frozen=True)
class Division:
    """The ranks of a group that spans hosts, as one of them sees it.

    inside: the group of its host.
    rail: the group of ranks, one of each host, that sum the same part of vectors; None: this rank sums none.
    rails: the number of such groups.
    """

    group: Group
    inside: Group
    rail: Group | None
    rails: int

    @classmethod
    def of(cls, group: Group) -> "Division":
        """The division of a group. A call of the group."""
        hosts, rank = group.hosts, group.rank
        seat = hosts.seat(rank)
        inside: Any = split(hosts.host_of(rank), group=group, name=f"{group.name}, inside a host")
        rail = split(seat if seat < hosts.rails else None, group=group, name=f"{group.name}, between hosts")
        return cls(group, inside, rail if isinstance(rail, Group) else None, hosts.rails)

    @property
    def hosts(self) -> int:
        return len(self.group.hosts.members)


@dataclass(frozen=True)
class Cells:
    """A vector in equal cells of whole blocks: for each rail, one cell for each host. Zeros fill up the last cells.

    blocks: the blocks of one cell.
    """

    rails: int
    hosts: int
    blocks: int

    @classmethod
    def of(cls, elements: int, division: Division) -> "Cells":
        count = division.rails * division.hosts
        return cls(division.rails, division.hosts, -(-elements // (count * BLOCK)))

    @property
    def share(self) -> int:
        """The number of elements that a rail sums."""
        return self.hosts * self.blocks * BLOCK

    @property
    def elements(self) -> int:
        """The number of all elements, with the zeros."""
        return self.rails * self.share


class Kept:
    """The rounding errors of one tensor: of this rank's share, by host, and of the sum that this rank makes."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self._share = torch.zeros(cells.hosts, cells.blocks * BLOCK, device="cpu")
        self._sum = torch.zeros(1, cells.blocks * BLOCK, device="cpu")

    def add(self, values: torch.Tensor) -> None:
        """Add the errors of the last call to a share or a sum."""
        values += self._of(values)

    def keep(self, values: torch.Tensor, rounded: torch.Tensor) -> None:
        """Keep the errors of this call. Infinite values and NaN have no error."""
        errors = self._of(values)
        torch.sub(values, rounded, out=errors)
        errors.nan_to_num_(0.0, 0.0, 0.0)

    def _of(self, values: torch.Tensor) -> torch.Tensor:
        return self._sum if len(values) == 1 else self._share


class Compression:
    """all_reduce that rounds values that leave a host, and adds the rounding errors to the next call's values.

    wire: `"bf16"`, half of float32's bytes, or `"int8"` with a scale for each 256 values, about a quarter.
    group: a group, or a process group of torch.distributed over unisono; None for the default group. If the default
    group changes, such as after `shrink`, the kept errors are dropped.
    error_feedback: keep rounding errors; without it, int8 loses small gradients.

    Calls are exact if all ranks share a host, and for tensors so small that rounding saves no bytes.

    sent_bytes: the bytes that this rank has sent to other hosts in rounded calls.
    exact_bytes: the least bytes that exact calls on the same tensors would have sent.
    """

    def __init__(self, wire: str = "int8", group: Any = None, *, error_feedback: bool = True) -> None:
        if wire not in ROUNDINGS:
            raise ArgumentError(f"wire={wire!r}: expected one of {', '.join(map(repr, ROUNDINGS))}")
        self.wire, self.error_feedback = wire, error_feedback
        self.sent_bytes = self.exact_bytes = 0
        self._rounding, self._call = ROUNDINGS[wire], f"all_reduce in {wire}"
        self._given: Group | None = getattr(group, "group", group)
        self._division: Division | None = None
        self.layouts: dict[int, tuple[int, ...]] = {}
        """The parameters in each bucket of DistributedDataParallel; see `compress_hook`."""
        self._kept: dict[Hashable, Kept] = {}
        self._memory: dict[str, torch.Tensor] = {}

    def all_reduce(
        self, tensor: torch.Tensor, op: str = "sum", *, name: Hashable = None, async_op: bool = False
    ) -> Any:
        """Replace the tensor on every rank by the sum over all ranks, or the average (`"avg"`). All get the same bits.

        tensor: floating point, any layout, of the same size and dtype on all ranks.
        name: names one of several tensors, such as its place in a model. Its rounding errors are added to the next
        tensor of this name.

        Returns None, or with `async_op` a `Work`.
        """
        group = group_or_default(self._given)
        if group.span is None:
            return all_reduce(tensor, op, group, async_op)
        division = self._divide(group)
        with Call(self._call, group, async_op) as call:
            check_tensor("tensor", tensor, written=True)
            if not tensor.is_floating_point() or tensor.is_sparse:
                raise DTypeError(f"tensor: only dense floating-point values can be rounded, not {tensor.dtype}")
            if op not in _OPS:
                raise ArgumentError(f"op={op!r}: rounded values can be combined by {' or '.join(map(repr, _OPS))} only")
            marked = needed_by_autograd([tensor])

            def action(_: str | None) -> torch.Tensor:
                self._make(division, tensor, op, name)
                mark_written(marked)
                return tensor

            call.action = action
        return call.run()

    def forget(self, *names: Hashable) -> None:
        """Drop the rounding errors of these names, or all: the values have changed, as after loading a checkpoint."""
        for name in names or list(self._kept):
            self._kept.pop(name, None)

    def _divide(self, group: Group) -> Division:
        if self._division is None or self._division.group is not group:
            self.forget()
            self._memory.clear()
            self._division = Division.of(group)
        return self._division

    @torch.no_grad()
    def _make(self, division: Division, tensor: torch.Tensor, op: str, name: Hashable) -> None:
        cells = Cells.of(tensor.numel(), division)
        rounded_bytes = 2 * (cells.hosts - 1) * self._rounding.nbytes(cells.blocks)
        exact_bytes = 2 * (cells.hosts - 1) * tensor.nbytes // (cells.hosts * cells.rails)
        if rounded_bytes >= exact_bytes:
            all_reduce(tensor, op, division.group)
            return
        try:
            self._reduce(division, cells, tensor, op, name)
        except UnisonoError as error:  # else ranks without a part in the failed step would wait for this one
            division.group.abort(f"{self._call} failed: {' '.join(str(error).split())}")
            raise
        if division.rail is not None:
            self.sent_bytes += rounded_bytes
            self.exact_bytes += exact_bytes

    def _reduce(self, division: Division, cells: Cells, tensor: torch.Tensor, op: str, name: Hashable) -> None:
        whole = self._buffer(division, "whole", cells.elements, tensor.dtype)
        values = whole[: tensor.numel()].view(tensor.shape)
        values.copy_(tensor.data)
        whole[tensor.numel() :].zero_()
        empty = whole[:0]
        shares = [*whole.view(cells.rails, -1), *[empty] * (division.inside.size - cells.rails)]
        share = empty if division.rail is None else self._buffer(division, "share", cells.share, tensor.dtype)
        reduce_scatter(share, shares, "sum", division.inside)
        if division.rail is not None:
            total = share.to(torch.float32, copy=True)
            if op == "avg":
                total /= division.group.size
            share.copy_(self._between(division.rail, total, self._kept_for(name, cells)))
        all_gather(shares, share, division.inside)
        tensor.data.copy_(values)

    def _between(self, rail: Group, share: torch.Tensor, kept: Kept | None) -> torch.Tensor:
        """The sum of this share over hosts, rounded. All get the same bits. share: written."""
        packed = self._round(share.view(rail.size, -1), kept)
        got = torch.empty_like(packed)
        all_to_all_single(got, packed, group=rail)
        total, *others = self._rounding.unpack(got)
        for values in others:  # in rank order
            total += values
        all_gather_single(got, self._round(total.unsqueeze(0), kept), group=rail)
        return self._rounding.unpack(got).flatten()

    def _round(self, values: torch.Tensor, kept: Kept | None) -> torch.Tensor:
        """The rows as bytes. values: written."""
        if kept is None:
            return self._rounding.pack(values)
        kept.add(values)
        packed = self._rounding.pack(values)
        kept.keep(values, self._rounding.unpack(packed))
        return packed

    def _kept_for(self, name: Hashable, cells: Cells) -> Kept | None:
        if not self.error_feedback:
            return None
        kept = self._kept.get(name)
        if kept is None or kept.cells != cells:
            kept = self._kept[name] = Kept(cells)
        return kept

    def _buffer(self, division: Division, what: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory for calls, which use it in turn. It is shared memory if there is room, so that calls do not stage."""
        nbytes = count * dtype.itemsize
        memory = self._memory.get(what)
        if memory is None or memory.numel() < nbytes:
            memory = self._memory[what] = division.group.buffer(nbytes, torch.uint8)
        return memory[:nbytes].view(dtype)


def compress_hook(state: Compression, bucket: GradBucket) -> Future[torch.Tensor]:
    """A hook for `register_comm_hook` that averages gradients with rounded values between hosts.

    state: a `Compression` of the model's process group, for this model alone.
    """
    gradients = bucket.buffer()
    layout = tuple(map(id, bucket.parameters()))  # after its first step, the model fills its buckets in another way
    if state.layouts.get(bucket.index()) != layout:
        state.forget(bucket.index())
        state.layouts[bucket.index()] = layout
    work = state.all_reduce(gradients, "avg", name=bucket.index(), async_op=True)

    def value(_: Future[torch.Tensor]) -> torch.Tensor:
        work.wait()  # raises the call's error: torch takes a future's error for a value
        return gradients

    future: Future[torch.Tensor] = work.get_future().then(value)
    return future
