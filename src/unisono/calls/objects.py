"""Collectives of Python objects, with torch's names and argument order, built on the collectives of tensors.

Plain values, CPU tensors and NumPy arrays can be sent, in lists, tuples, dicts and sets: see `calls.codec.encode`.
Bytes from a peer run no code here. pickle=True, on every rank, sends any object that can be pickled, also dataclasses
and named tuples: use it only with peers you trust.

Each call has two steps. First, every rank announces how many bytes it sends, or why it cannot: an object that cannot be
encoded and a wrong list are errors on every rank (PeerFailed, naming the rank, on the others), and the group can still
be used. Then the bytes move. If a rank cannot decode an object, only that rank raises ArgumentError. Lists are filled
completely or not at all.

timeout_s: how long a rank waits for the others in each step; None: the group's default.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..base.errors import ArgumentError, PeerFailed, UnisonoError, UsageError
from ..engine.process.nested import caller
from ..ranks.group.group import Group
from ..ranks.group.initialize import group_or_default
from .arguments import check_list, check_root
from .codec import decode, encode
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
    call = _Call("all_gather_object", group, pickle, timeout_s)

    def prepare() -> list[torch.Tensor]:
        check_list("object_list", object_list, call.group.size)
        return [call.encoded("obj", obj)]

    payloads, sizes = call.announce(prepare)
    blocks = call.gather_bytes(payloads[0], sizes)
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
    call = _Call("gather_object", group, pickle, timeout_s)
    root = call.root("dst", dst)
    is_root = call.group.rank == root

    def prepare() -> list[torch.Tensor]:
        if is_root:
            check_list("object_gather_list", object_gather_list, call.group.size)
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
    """Replace the items of `object_list`, on every rank but `src`, by the items of rank `src`.

    object_list: of the same length on every rank; on `src` it is only read.
    """
    call = _Call("broadcast_object_list", group, pickle, timeout_s)
    root = call.root("src", src)
    is_root = call.group.rank == root

    def prepare() -> list[torch.Tensor]:
        check_list("object_list", object_list)
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

    scatter_object_output_list: at least one item.
    scatter_object_input_list: on `src` one object per rank; ignored elsewhere.
    """
    call = _Call("scatter_object_list", group, pickle, timeout_s)
    root = call.root("src", src)

    def prepare() -> list[torch.Tensor]:
        check_list("scatter_object_output_list", scatter_object_output_list)
        if not scatter_object_output_list:
            raise ArgumentError("scatter_object_output_list: is empty; pass a list with a place for the object: [None]")
        if call.group.rank != root:
            return []
        objects = check_list("scatter_object_input_list", scatter_object_input_list, call.group.size)
        return [call.encoded(f"scatter_object_input_list[{rank}]", obj) for rank, obj in enumerate(objects)]

    payloads, _ = call.announce(prepare)
    block = call.scatter_bytes(payloads, root)
    scatter_object_output_list[0] = call.decoded(block, root)


class _Call:
    """One rank's part of a call: the announcement, and collectives of payloads of different lengths."""

    def __init__(self, name: str, group: Group | None, pickle: bool, timeout_s: float | None) -> None:
        self.name, self.group = name, group_or_default(group)
        self.pickle, self.timeout_s = pickle, timeout_s

    def root(self, argument: str, rank: int) -> int:
        with checking(self.group, self.name):
            return check_root(argument, rank, self.group)

    def encoded(self, argument: str, obj: object) -> torch.Tensor:
        """The payload of an object. argument: its name in errors."""
        try:
            return encode(obj, pickle=self.pickle)
        except UsageError as error:
            raise type(error)(f"{argument}: {error}") from error

    def announce(self, prepare: Callable[[], list[torch.Tensor]]) -> tuple[list[torch.Tensor], list[int]]:
        """The payloads of this rank, and for every rank the bytes of its longest payload.

        If `prepare` raises on a rank, this raises on all.
        """
        payloads: list[torch.Tensor] = []
        failure: Exception | None = None
        try:
            payloads = prepare()
        except Exception as error:  # noqa: BLE001  raised below, once the others know
            failure = error
        text = f"{type(failure).__name__}: {failure}".encode(errors="backslashreplace") if failure else b""
        sizes = torch.empty(self.group.size, dtype=torch.int64, device="cpu")
        mine = sizes[self.group.rank].fill_(max(map(len, payloads), default=0))
        if failure:
            mine.fill_(-len(text))  # below 0: the length of an error's text
        all_gather_single(sizes, mine, self.group, timeout_s=self.timeout_s)
        lengths: list[int] = sizes.tolist()
        failed = [rank for rank, length in enumerate(lengths) if length < 0]
        if failed:
            block = torch.tensor(list(text), dtype=torch.uint8, device="cpu")
            texts = self.gather_bytes(block, [max(0, -length) for length in lengths])
            if failure:
                raise failure
            reason = str(texts[failed[0]], "utf-8")
            raise PeerFailed(failed[0], reason, self.group.rank, f"{self.name} ({caller()})")
        return payloads, lengths

    def gather_bytes(self, mine: torch.Tensor, sizes: Sequence[int], dst: int | None = None) -> list[memoryview]:
        """The payloads of all ranks, rank r's of sizes[r] bytes: on rank `dst`, none elsewhere; None: on every rank."""
        me = self.group.rank
        sources = enumerate(sizes) if dst in (None, me) else ()
        with checking(self.group, self.name):
            blocks = [mine if rank == me else _empty(size) for rank, size in sources]
        if dst is None:
            all_gather(blocks, mine, self.group, timeout_s=self.timeout_s)
        else:
            gather(mine, blocks or None, dst, self.group, timeout_s=self.timeout_s)
        return [_bytes(block) for block in blocks]

    def broadcast_bytes(self, payloads: list[torch.Tensor], size: int, src: int) -> memoryview:
        """The payload of rank `src`, of `size` bytes; the others pass none."""
        with checking(self.group, self.name):
            block = payloads[0] if payloads else _empty(size)
        broadcast(block, src, self.group, timeout_s=self.timeout_s)
        return _bytes(block)

    def scatter_bytes(self, payloads: list[torch.Tensor], src: int) -> memoryview:
        """This rank's payload from rank `src`; the others pass none."""
        size = torch.empty(1, dtype=torch.int64, device="cpu")
        sizes = [torch.tensor([len(payload)], device="cpu") for payload in payloads]
        scatter(size, sizes, src, self.group, timeout_s=self.timeout_s)
        with checking(self.group, self.name):
            mine = _empty(int(size))
        scatter(mine, payloads, src, self.group, timeout_s=self.timeout_s)
        return _bytes(mine)

    def decoded(self, data: memoryview, rank: int) -> Any:
        """The object that a rank has sent. Raises ArgumentError if it cannot be decoded."""
        try:
            return decode(data, pickle=self.pickle)
        except UnisonoError as error:
            raise ArgumentError(f"{self.name}: what rank {rank} sent cannot be decoded here: {error}") from error


def _empty(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu")


def _bytes(block: torch.Tensor) -> memoryview:
    return block.numpy().data
