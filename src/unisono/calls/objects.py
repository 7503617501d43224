"""Collectives of Python objects, with torch's names and argument order.

Plain values, CPU tensors and NumPy arrays can be sent, in lists, tuples, dicts and sets: see `calls.codec.encode`.
Bytes from a peer run no code here. pickle=True, on every rank, sends any object that can be pickled, also dataclasses
and named tuples: use it only with peers you trust.

Each call has two steps: first the numbers of bytes, then the bytes. An object that cannot be encoded and a wrong list
are refused, as arguments of other calls are: MismatchError on the other ranks. If a rank cannot decode an object, only
that rank raises ArgumentError. Lists are filled completely or not at all.

timeout_s: how long a rank waits for the others in each step; None: the group's default.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ..base.errors import ArgumentError, UsageError
from ..base.records import CallRecord
from ..ranks.group.group import Group
from .arguments import check_list, check_root
from .codec import decode_from, decode_into, encode
from .dispatch import Call, Request, Rows, Tensors, plan_after


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
    with Call("all_gather_object", group, timeout_s=timeout_s) as call:
        check_list("object_list", object_list, call.group.size)
        _plan(call, "all_gather", [_encoded("obj", obj, pickle)])
    _decode_all(call, object_list, pickle)


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
    with Call("gather_object", group, timeout_s=timeout_s) as call:
        root = check_root("dst", dst, call.group)
        if call.group.rank == root:
            check_list("object_gather_list", object_gather_list, call.group.size)
        elif object_gather_list:
            raise ArgumentError(f"object_gather_list: only rank {root} (dst) passes it; pass None here")
        _plan(call, "gather", [_encoded("obj", obj, pickle)], root)
    _decode_all(call, object_gather_list, pickle)


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
    with Call("broadcast_object_list", group, timeout_s=timeout_s) as call:
        root = check_root("src", src, call.group)
        check_list("object_list", object_list)
        is_root = call.group.rank == root
        _plan(call, "broadcast", [_encoded("object_list", object_list, pickle)] if is_root else [], root)
    block = call.run()
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
    with Call("scatter_object_list", group, timeout_s=timeout_s) as call:
        root, payloads = check_root("src", src, call.group), list[torch.Tensor]()
        check_list("scatter_object_output_list", scatter_object_output_list)
        if not scatter_object_output_list:
            raise ArgumentError("scatter_object_output_list: is empty; pass a list with a place for the object: [None]")
        if call.group.rank == root:
            objects = check_list("scatter_object_input_list", scatter_object_input_list, call.group.size)
            payloads += [_encoded(f"scatter_object_input_list[{k}]", obj, pickle) for k, obj in enumerate(objects)]
        _plan(call, "scatter", payloads, root)
    scatter_object_output_list[0] = decode_from(root, call.run(), call.collective, pickle=pickle)


def _plan(call: Call, collective: str, payloads: Sequence[torch.Tensor], root: int = 0) -> None:
    """Plan a call that gathers the numbers of bytes first. Its result is what this rank receives.

    payloads: what this rank sends: one, or one to each rank; empty: nothing.
    """
    me, width, nothing = call.group.rank, call.group.size if collective == "scatter" else 1, _empty(0)

    def request(rows: Rows, _: str | None) -> Request:
        inp: Tensors
        out: Tensors
        if collective == "broadcast":
            sizes = rows[root]
            inp = out = payloads[0] if me == root else _empty(sizes[0])
        elif collective == "scatter":
            sizes = rows[root]
            inp, out = payloads or None, _empty(sizes[me])
        else:
            sizes, inp, out = [row[0] for row in rows], payloads[0], None
            if collective == "all_gather" or me == root:
                out = [inp if rank == me else _empty(size) for rank, size in enumerate(sizes)]
        return Request(collective, nothing, inp, out, root=root, in_place=inp is out).sized(sizes)

    row = [len(payload) for payload in payloads] or [0] * width
    says = CallRecord(collective, counts=None, root=root, words="of objects")
    plan_after(call, Request(collective, nothing, None, None, root=root), row, says, request)
    call.returns = True


def _encoded(argument: str, obj: object, pickle: bool) -> torch.Tensor:
    """The payload of an object. argument: its name in errors."""
    try:
        return encode(obj, pickle=pickle)
    except UsageError as error:
        raise type(error)(f"{argument}: {error}") from error


def _decode_all(call: Call, places: list[Any] | None, pickle: bool) -> None:
    """Make the call, and fill the list, if this rank has one."""
    blocks = call.run()
    if places is not None and blocks is not None:
        places[:] = [decode_from(rank, block, call.collective, pickle=pickle) for rank, block in enumerate(blocks)]


def _empty(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
