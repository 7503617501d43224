"""Collectives of Python objects: torch's names and argument order, over the collectives of tensors.

An object travels through `codec`, which is safe: what a peer sends can never run code here. See `codec.encode` for what
it knows; pickle=True, on every rank, sends anything that can be pickled, between ranks that trust each other.

Each call has two steps. First the ranks tell each other how many bytes they bring, or why they bring none: so an object
that cannot be encoded, or a wrong list, is an error on every rank (PeerFailed on the others, naming the rank), and the
group can be used again. Then the bytes move. An object that came but cannot be decoded is an ArgumentError only where
that is so. Lists are filled when all of it went well, or not at all.

timeout_s: how long a rank waits for the others in each of these steps; None is the group's default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .arguments import check_root
from .codec import Buffer, decode, encode, fill
from .collectives import all_gather, all_gather_single, broadcast, gather, scatter
from .dispatch import default_group, entering
from .errors import ArgumentError, DTypeError, PeerFailed, UnisonoError, UsageError
from .membership.group import Group
from .watch import caller

__all__ = ["all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"]

Payload = list[Buffer]


def all_gather_object(
    object_list: list[Any],
    obj: Any,
    group: Group | None = None,
    *,
    pickle: bool = False,
    timeout_s: float | None = None,
) -> None:
    """Put `obj` of each rank r into object_list[r] of every rank.

    object_list: as many places as there are ranks; what is in them is replaced.
    """
    call = _Call("all_gather_object", group, pickle, timeout_s)

    def prepare() -> list[Payload]:
        _check_list("object_list", object_list, call.group.size)
        return [call.encoded("obj", obj)]

    payloads, sizes = call.announce(prepare)
    blocks = call.all_gather_bytes(payloads[0], sizes)
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

    object_gather_list: on `dst` as many places as there are ranks, whose contents are replaced; None elsewhere.
    """
    call = _Call("gather_object", group, pickle, timeout_s)
    root = call.root("dst", dst)
    is_root = call.group.rank == root

    def prepare() -> list[Payload]:
        if is_root:
            _check_list("object_gather_list", object_gather_list, call.group.size)
        elif object_gather_list:
            raise ArgumentError(f"object_gather_list: only rank {root} (dst) passes it; pass None here")
        return [call.encoded("obj", obj)]

    payloads, sizes = call.announce(prepare)
    blocks = call.gather_bytes(payloads[0], sizes, root)
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
    """Replace the objects in `object_list`, on every rank but `src`, by those of rank `src`.

    object_list: as long on every rank as on `src`, where it is only read.
    """
    call = _Call("broadcast_object_list", group, pickle, timeout_s)
    root = call.root("src", src)
    is_root = call.group.rank == root

    def prepare() -> list[Payload]:
        _check_list("object_list", object_list)
        return [call.encoded("object_list", object_list)] if is_root else []

    payloads, sizes = call.announce(prepare)
    block = call.broadcast_bytes(payloads, sizes[root], root)
    if is_root:
        return
    objects = call.decoded(block, root)
    if len(objects) != len(object_list):
        raise ArgumentError(
            f"object_list: has {len(object_list)} places on rank {call.group.rank}, but rank {root} (src) sent "
            f"{len(objects)} objects: pass lists of the same length on every rank"
        )
    object_list[:] = objects


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

    scatter_object_output_list: at least one place. scatter_object_input_list: on `src` one object per rank; not looked
    at elsewhere.
    """
    call = _Call("scatter_object_list", group, pickle, timeout_s)
    root = call.root("src", src)

    def prepare() -> list[Payload]:
        _check_list("scatter_object_output_list", scatter_object_output_list)
        if not scatter_object_output_list:
            raise ArgumentError("scatter_object_output_list: is empty; pass a list with a place for the object: [None]")
        if call.group.rank != root:
            return []
        objects = _check_list("scatter_object_input_list", scatter_object_input_list, call.group.size)
        return [call.encoded(f"scatter_object_input_list[{rank}]", obj) for rank, obj in enumerate(objects)]

    payloads, _ = call.announce(prepare)
    block = call.scatter_bytes(payloads, root)
    scatter_object_output_list[0] = call.decoded(block, root)


def _check_list(argument: str, objects: Any, places: int | None = None) -> list[Any]:
    """A list, with as many places as there are ranks if that is asked for."""
    if not isinstance(objects, list):
        raise DTypeError(f"{argument}: expected a list, got {type(objects).__name__}")
    if places is not None and len(objects) != places:
        raise ArgumentError(f"{argument}: expected a list of {places} places, one per rank, got {len(objects)}")
    return objects


class _Call:
    """One rank's part of one call: what all four have in common, and how payloads of uneven length move."""

    def __init__(self, name: str, group: Group | None, pickle: bool, timeout_s: float | None) -> None:
        self.name, self.group = name, (default_group() if group is None else group)
        self.pickle, self.timeout_s = pickle, timeout_s

    def root(self, argument: str, rank: int) -> int:
        """The rank that the call is from or to."""
        with entering(self.group, self.name):
            return check_root(argument, rank, self.group)

    def encoded(self, argument: str, obj: object) -> Payload:
        """The payload of an object, which the caller knows as this argument."""
        try:
            return encode(obj, pickle=self.pickle)
        except UsageError as error:
            raise type(error)(f"{argument}: {error}") from error

    def announce(self, prepare: Callable[[], list[Payload]]) -> tuple[list[Payload], list[int]]:
        """What this rank sends, and for every rank how many bytes its longest payload has.

        Where `prepare` raises on a rank, this raises on all of them.
        """
        payloads: list[Payload] = []
        trouble: Exception | None = None
        try:
            payloads = prepare()
        except Exception as error:  # noqa: BLE001  raised below, when the others know
            trouble = error
        text = f"{type(trouble).__name__}: {trouble}".encode(errors="backslashreplace") if trouble else b""
        sizes = torch.empty(self.group.size, dtype=torch.int64, device="cpu")
        mine = sizes[self.group.rank].fill_(max(map(_length, payloads), default=0))
        if trouble:
            mine.fill_(-len(text))  # a text instead of a payload
        all_gather_single(sizes, mine, self.group, timeout_s=self.timeout_s)
        lengths: list[int] = sizes.tolist()
        failed = [rank for rank, length in enumerate(lengths) if length < 0]
        if failed:
            texts = self.all_gather_bytes([text], [max(0, -length) for length in lengths])
            if trouble:
                raise trouble
            reason = str(texts[failed[0]], "utf-8")
            raise PeerFailed(failed[0], reason, self.group.rank, f"{self.name} ({caller()})")
        return payloads, lengths

    def all_gather_bytes(self, payload: Payload, sizes: Sequence[int]) -> list[memoryview]:
        """Everybody's payload; rank r's has sizes[r] bytes."""
        blocks = [_empty(size) for size in sizes]
        fill(blocks[self.group.rank], payload)
        all_gather(blocks, blocks[self.group.rank], self.group, timeout_s=self.timeout_s)
        return [_bytes(block) for block in blocks]

    def gather_bytes(self, payload: Payload, sizes: Sequence[int], dst: int) -> list[memoryview]:
        """Everybody's payload on rank `dst`, nothing elsewhere; rank r's has sizes[r] bytes."""
        mine = _empty(sizes[self.group.rank])
        fill(mine, payload)
        if self.group.rank != dst:
            gather(mine, None, dst, self.group, timeout_s=self.timeout_s)
            return []
        blocks = [mine if rank == dst else _empty(size) for rank, size in enumerate(sizes)]
        gather(mine, blocks, dst, self.group, timeout_s=self.timeout_s)
        return [_bytes(block) for block in blocks]

    def broadcast_bytes(self, payloads: Sequence[Payload], size: int, src: int) -> memoryview:
        """The one payload of rank `src`, of this size; the others pass none."""
        block = _empty(size)
        for payload in payloads:
            fill(block, payload)
        broadcast(block, src, self.group, timeout_s=self.timeout_s)
        return _bytes(block)

    def scatter_bytes(self, payloads: Sequence[Payload], src: int) -> memoryview:
        """This rank's payload of those of rank `src`; the others pass none."""
        blocks = [_empty(_length(payload)) for payload in payloads]
        for block, payload in zip(blocks, payloads, strict=True):
            fill(block, payload)
        return _bytes(scatter(None, blocks, src, self.group, timeout_s=self.timeout_s))

    def decoded(self, data: memoryview, rank: int) -> Any:
        """The object that came from this rank."""
        try:
            return decode(data, pickle=self.pickle)
        except UnisonoError as error:
            raise ArgumentError(f"{self.name}: what rank {rank} sent cannot be decoded here: {error}") from error


def _length(payload: Payload) -> int:
    return sum(map(len, payload))


def _empty(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu")


def _bytes(block: torch.Tensor) -> memoryview:
    return block.numpy().data
