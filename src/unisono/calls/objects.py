"""Collectives of Python objects, with torch's names and argument order: first the numbers of bytes, then the bytes.

Plain values, CPU tensors and NumPy arrays can be sent, in lists, tuples, dicts and sets: see `calls.codec.encode`.
Bytes from a peer run no code here, unless all ranks pass `pickle=True`.
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
    """Collect one Python object from each rank on every rank: the object of rank r goes to `object_list[r]`.

    Args:
        object_list: A list with one item for each rank; all items are replaced.
        obj: A plain value, CPU tensor or NumPy array, also in lists, tuples, dicts and sets.
        group: None: the default group.
        pickle: Send and accept any object that can be pickled. Pickled objects can run any code: use it only with peers
            that you trust. All ranks pass the same.
        timeout_s: Seconds to wait for other ranks, first for lengths and then for objects. None: the group's
            `timeout_s`.

    Raises:
        ArgumentError: The list has a wrong length, or an object cannot be decoded. The list is then unchanged.
        DTypeError: The object cannot be sent.
        MismatchError: Another rank raised one of these errors, or made a different call.
        PeerGone, PeerFailed, WaitTimeout: As in `all_reduce`.
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
    """Collect one Python object from each rank on rank `dst`: the object of rank r goes to `object_gather_list[r]`.

    Args:
        obj, group, pickle, timeout_s: As in `all_gather_object`, with the same errors.
        object_gather_list: On `dst`, a list with one item for each rank; all items are replaced. None on the other
            ranks.
        dst: The rank that gets the objects.
    """
    with Call("gather_object", group, timeout_s=timeout_s) as call:
        root = check_root("dst", dst, call.group)
        if call.group.rank == root:
            check_list("object_gather_list", object_gather_list, call.group.size)
        elif object_gather_list:
            raise ArgumentError(
                f"object_gather_list: got a list, expected it on rank {root} (dst) only. Pass None here."
            )
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
    """Copy the Python objects in the list of rank `src` to the lists of all other ranks.

    Args:
        object_list: A list of the same length on every rank. Its items are replaced, except on `src`.
        src: The rank whose objects are copied.
        group, pickle, timeout_s: As in `all_gather_object`, with the same errors.
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
    """Give each rank its object of a list on rank `src`: rank r gets item r, as item 0 of its output list.

    Args:
        scatter_object_output_list: A list with at least one item; the first is replaced.
        scatter_object_input_list: On `src`, one object for each rank. Ignored on the other ranks.
        src: The rank that has the objects.
        group, pickle, timeout_s: As in `all_gather_object`, with the same errors.
    """
    with Call("scatter_object_list", group, timeout_s=timeout_s) as call:
        root, payloads = check_root("src", src, call.group), list[torch.Tensor]()
        check_list("scatter_object_output_list", scatter_object_output_list)
        if not scatter_object_output_list:
            raise ArgumentError(
                "scatter_object_output_list: got an empty list, expected one with a place for the object. Pass [None]."
            )
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
