"""Collectives of Python objects, with torch's names and argument order, built on the collectives of tensors.

Plain values, CPU tensors and NumPy arrays can be sent, in lists, tuples, dicts and sets: see `calls.codec.encode`.
Bytes from a peer run no code here. pickle=True, on every rank, sends any object that can be pickled, also dataclasses
and named tuples: use it only with peers you trust.

Each call has two steps: first the numbers of bytes, then the bytes. An object that cannot be encoded and a wrong list
are refused, as arguments of other calls are: MismatchError on the other ranks. If a rank cannot decode an object, only
that rank raises ArgumentError. Lists are filled completely or not at all.

timeout_s: how long a rank waits for the others in each step; None: the group's default.
"""

from typing import Any

import torch

from ..base.errors import ArgumentError, UsageError
from ..ranks.group.group import Group
from .arguments import check_list, check_root
from .codec import decode_from, decode_into, encode
from .collectives.all_gather import all_gather, all_gather_single
from .collectives.broadcast import broadcast
from .collectives.gather import gather
from .collectives.scatter import scatter
from .dispatch import checking


def all_gather_object(
    object_list: list[Any],
    obj: Any,
    group: Group | None = None,
    *,
    pickle: bool = False,
    timeout_s: float | None = None,
) -> None:
    """Put `obj` of each rank r into object_list[r] of every rank.

    object_list: one item per rank; all are replaced.
    """
    with _Call("all_gather_object", group, pickle, timeout_s) as call:
        check_list("object_list", object_list, call.group.size)
        payload = call.encoded("obj", obj)
    blocks = call.gather_bytes(payload)
    object_list[:] = [call.decoded(block, rank) for rank, block in enumerate(blocks)]


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int = 0,
    group: Group | None = None,
    *,
    pickle: bool = False,
    timeout_s: float | None = None,
) -> None:
    """Put `obj` of each rank r into object_gather_list[r] of rank `dst`.

    object_gather_list: on `dst` one item per rank, all replaced; None elsewhere.
    """
    with _Call("gather_object", group, pickle, timeout_s) as call:
        root = check_root("dst", dst, call.group)
        if call.group.rank == root:
            check_list("object_gather_list", object_gather_list, call.group.size)
        elif object_gather_list:
            raise ArgumentError(f"object_gather_list: only rank {root} (dst) passes it; pass None here")
        payload = call.encoded("obj", obj)
    blocks = call.gather_bytes(payload, root)
    if object_gather_list is not None:
        object_gather_list[:] = [call.decoded(block, rank) for rank, block in enumerate(blocks)]


def broadcast_object_list(
    object_list: list[Any],
    src: int = 0,
    group: Group | None = None,
    *,
    pickle: bool = False,
    timeout_s: float | None = None,
) -> None:
    """Replace the items of `object_list`, on every rank but `src`, by the items of rank `src`.

    object_list: of the same length on every rank; on `src` it is only read.
    """
    with _Call("broadcast_object_list", group, pickle, timeout_s) as call:
        root = check_root("src", src, call.group)
        check_list("object_list", object_list)
        is_root = call.group.rank == root
        payload = call.encoded("object_list", object_list) if is_root else _empty(0)
    block = call.broadcast_bytes(payload, root)
    if not is_root:
        decode_into(object_list, root, block, call.collective, pickle=pickle)


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int = 0,
    group: Group | None = None,
    *,
    pickle: bool = False,
    timeout_s: float | None = None,
) -> None:
    """Put scatter_object_input_list[r] of rank `src` into scatter_object_output_list[0] of each rank r.

    scatter_object_output_list: at least one item.
    scatter_object_input_list: on `src` one object per rank; ignored elsewhere.
    """
    with _Call("scatter_object_list", group, pickle, timeout_s) as call:
        root, payloads = check_root("src", src, call.group), list[torch.Tensor]()
        check_list("scatter_object_output_list", scatter_object_output_list)
        if not scatter_object_output_list:
            raise ArgumentError("scatter_object_output_list: is empty; pass a list with a place for the object: [None]")
        if call.group.rank == root:
            objects = check_list("scatter_object_input_list", scatter_object_input_list, call.group.size)
            payloads += [call.encoded(f"scatter_object_input_list[{rank}]", obj) for rank, obj in enumerate(objects)]
    block = call.scatter_bytes(payloads, root)
    scatter_object_output_list[0] = call.decoded(block, root)


class _Call(checking):
    """One rank's part of a call: the block in which it is checked, and collectives of payloads of different lengths."""

    def __init__(self, name: str, group: Group | None, pickle: bool, timeout_s: float | None) -> None:
        super().__init__(group, name)
        self.pickle, self.timeout_s = pickle, timeout_s

    def encoded(self, argument: str, obj: object) -> torch.Tensor:
        """The payload of an object. argument: its name in errors."""
        try:
            return encode(obj, pickle=self.pickle)
        except UsageError as error:
            raise type(error)(f"{argument}: {error}") from error

    def gather_bytes(self, mine: torch.Tensor, dst: int | None = None) -> list[memoryview]:
        """The payloads of all ranks: on rank `dst`, none elsewhere; None: on every rank."""
        group, timeout_s = self.group, self.timeout_s
        lengths = torch.empty(group.size, dtype=torch.int64, device="cpu")
        all_gather_single(lengths, lengths[group.rank].fill_(len(mine)), group, timeout_s=timeout_s)
        with self:
            sizes = enumerate(lengths.tolist() if dst in (None, group.rank) else ())
            blocks = [mine if rank == group.rank else _empty(size) for rank, size in sizes]
        if dst is None:
            all_gather(blocks, mine, group, timeout_s=timeout_s)
        else:
            gather(mine, blocks or None, dst, group, timeout_s=timeout_s)
        return [_bytes(block) for block in blocks]

    def broadcast_bytes(self, payload: torch.Tensor, src: int) -> memoryview:
        """The payload of rank `src`."""
        size = torch.tensor([len(payload)], device="cpu")
        broadcast(size, src, self.group, timeout_s=self.timeout_s)
        with self:
            block = payload if self.group.rank == src else _empty(int(size))
        broadcast(block, src, self.group, timeout_s=self.timeout_s)
        return _bytes(block)

    def scatter_bytes(self, payloads: list[torch.Tensor], src: int) -> memoryview:
        """This rank's payload from rank `src`; the others pass none."""
        size = torch.empty(1, dtype=torch.int64, device="cpu")
        sizes = [torch.tensor([len(payload)], device="cpu") for payload in payloads]
        scatter(size, sizes, src, self.group, timeout_s=self.timeout_s)
        with self:
            mine = _empty(int(size))
        scatter(mine, payloads, src, self.group, timeout_s=self.timeout_s)
        return _bytes(mine)

    def decoded(self, data: memoryview, rank: int) -> Any:
        return decode_from(rank, data, self.collective, pickle=self.pickle)


def _empty(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu")


def _bytes(block: torch.Tensor) -> memoryview:
    return block.numpy().data
