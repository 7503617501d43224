"""Calls of torch that are made of several of our calls: `monitored_barrier`, and all_reduce of sparse tensors."""

import time
from contextlib import suppress
from typing import Any

import torch

from ...base.errors import ArgumentError, PeerFailed, PeerGone, WaitTimeout
from ...base.records import Sighting
from ...calls.collectives.all_gather import all_gather
from ...calls.dispatch import checking
from ...calls.ops import resolve
from ...engine.tensors import in_mode_of
from ...ranks.group.group import Group
from .to_torch import for_torch, late_phrase, waiting_phrase

_TAGS = 1 << 62  # the first tag for barriers; each barrier has its own
_GRACE_S = 2.0  # how much longer the other ranks wait for rank 0's answer than rank 0 waits for them


def monitored_barrier(group: Group, number: int, timeout_s: float, wait_all_ranks: bool) -> None:
    """Return when all ranks have called it. If a rank has not within timeout_s, the others raise WaitTimeout.

    number: how many monitored barriers this rank has made before.
    wait_all_ranks: name every missing rank, else the first.

    It uses messages to rank 0 and back only, so the group stays usable.
    """
    from ...calls.p2p import recv, send  # most programs send no messages

    call, tag, began = "monitored_barrier()", _TAGS + number, time.monotonic()
    absent = torch.zeros(group.size, dtype=torch.int64, device="cpu")
    why, seen = "", list[Sighting]()
    if group.rank:
        try:
            send(absent[:1], 0, group, tag, timeout_s=timeout_s)
            recv(absent, 0, group, tag, timeout_s=timeout_s + _GRACE_S)
        except (PeerGone, WaitTimeout) as error:
            seen += error.seen if isinstance(error, WaitTimeout) else ()
            why = f" {error}" if isinstance(error, PeerGone) else ""
            late = WaitTimeout(call, time.monotonic() - began, (0,), group.rank, why, seen=seen)
            raise for_torch(late, waiting_phrase(group.rank)) from error
    else:
        for rank in range(1, group.size):
            left_s = max(0.0, began + timeout_s - time.monotonic())
            try:
                recv(torch.empty(1, dtype=torch.int64, device="cpu"), rank, group, tag, timeout_s=left_s)
            except (PeerFailed, PeerGone, WaitTimeout) as error:
                group.check_usable()  # raises if the group has been aborted
                absent[rank] = 1
                seen += error.seen if isinstance(error, WaitTimeout) else ()
                why += "" if isinstance(error, WaitTimeout) else f" {error}"
                if not wait_all_ranks:
                    break
        for rank in range(1, group.size):  # a rank that comes later hears at once that the barrier is over
            with suppress(PeerFailed, PeerGone):
                send(absent, rank, group, tag)
        group.check_usable()
    if absent.any():
        missing = absent.nonzero().flatten().tolist()
        late = WaitTimeout(call, time.monotonic() - began, missing, group.rank, why, seen=seen)
        raise for_torch(late, waiting_phrase(group.rank) if group.rank else late_phrase(missing, timeout_s))


def all_reduce_sparse(tensor: torch.Tensor, op: Any, group: Group, timeout_s: float | None) -> None:
    """Replace a sparse COO tensor, on every rank, by the sum or average of all ranks' tensors.

    tensor: the same shape on every rank, any number of non-zero elements; in place, coalesced afterwards. Raises
    ArgumentError for other layouts, ops or shapes.
    """
    with checking(group, "all_reduce"):
        name = resolve(op)
        if tensor.layout is not torch.sparse_coo or name not in ("sum", "avg"):
            raise ArgumentError(
                f"got a sparse tensor that is not COO, or op {name}. Sparse tensors need COO layout, and op sum or avg."
            )
    with in_mode_of(tensor):  # it takes the memory of the total
        mine = tensor.detach().coalesce()
        _check_shapes(mine, group, timeout_s)
        places = all_gather(None, mine.indices().t().contiguous(), group, timeout_s=timeout_s)
        values = all_gather(None, mine.values(), group, timeout_s=timeout_s)
        # Checks are off: these indices come from existing tensors of this shape.
        total = torch.sparse_coo_tensor(torch.cat(places).t(), torch.cat(values), tensor.shape, check_invariants=False)
        total = total.coalesce()
        tensor.copy_(total / group.size if name == "avg" else total)


def _check_shapes(tensor: torch.Tensor, group: Group, timeout_s: float | None) -> None:
    """Raise ArgumentError on every rank if their tensors have different shapes."""
    mine = torch.tensor([tensor.sparse_dim(), *tensor.shape], device="cpu")
    shapes = [shape.tolist() for shape in all_gather(None, mine, group, timeout_s=timeout_s)]
    if any(shape != shapes[0] for shape in shapes):
        told = ", ".join(f"{shape} with {sparse} sparse on rank {rank}" for rank, (sparse, *shape) in enumerate(shapes))
        raise ArgumentError(f"sparse tensors need the same shape and number of sparse dimensions on all ranks: {told}")
