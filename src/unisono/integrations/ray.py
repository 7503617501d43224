"""Groups of Ray's actors: `ray.util.collective` with backend="unisono", on one host or several. Needs Ray.

    import unisono.integrations.ray

    @ray.remote
    class Worker:
        def __init__(self, rank, size):
            unisono.ray.register()
            ray.util.collective.init_collective_group(size, rank, backend="unisono")

Ray Train needs nothing of this: `TorchConfig(backend="unisono")`.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from ray import get_runtime_context
from ray.experimental import internal_kv
from ray.util import get_node_ip_address
from ray.util.collective import is_backend_available, register_collective_backend, types
from ray.util.collective.collective_group.base_collective_group import BaseGroup

from ..base.config import Config
from ..base.errors import DTypeError, WaitTimeout
from ..base.records import DepartureKind
from ..calls.collectives.all_gather import all_gather
from ..calls.collectives.all_reduce import all_reduce
from ..calls.collectives.barrier import barrier
from ..calls.collectives.broadcast import broadcast
from ..calls.collectives.reduce import reduce
from ..calls.collectives.reduce_scatter import reduce_scatter
from ..calls.p2p import recv, send
from ..engine.memory.arena import Arena
from ..hosts.addresses import try_to_reach
from ..ranks.group.group import Group
from ..ranks.group.world_group import world_group
from ..ranks.rendezvous.rendezvous import meet
from .torch.to_torch import for_torch

_NAME = "UNISONO"
_ASK_S = 0.01


def register() -> None:
    """Let Ray know the backend, in this process. The driver and each actor call it before they make groups."""
    if not is_backend_available(_NAME):
        register_collective_backend(_NAME, UnisonoGroup)


@contextmanager
def _errors_of_torch() -> Iterator[None]:
    """Let errors be errors of `torch.distributed`, too, and so RuntimeErrors, as in Ray's own groups."""
    try:
        yield
    except Exception as error:
        for_torch(error)
        raise


class UnisonoGroup(BaseGroup):  # type: ignore[misc]  # Ray is not there when types are checked
    """A group of actors, as `ray.util.collective` calls it. Tensors are torch's on the CPU, or numpy arrays.

    group: the same group as a `Group` of unisono, for all of its calls. Groups of other names are independent.
    """

    @_errors_of_torch()
    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        config = Config.from_env()
        if world_size == 1:
            self.group = Group(Arena.create(1, config), 0, name=group_name, config=config)
            return
        start, key = time.monotonic(), f"unisono {get_runtime_context().get_job_id()} {group_name}"
        store = _serve(key) if rank == 0 else _find(key, rank, config.timeout_s)
        left_s = config.timeout_s - (time.monotonic() - start)
        self.group = world_group(meet(rank, world_size, store, left_s, config), rank, name=group_name, config=config)
        barrier(self.group)
        if rank == 0:  # all ranks have come, so none asks any more
            internal_kv._internal_kv_del(key)  # noqa: SLF001

    @classmethod
    def backend(cls) -> str:
        """The name that Ray knows."""
        return _NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        """True: the backend comes with unisono."""
        return True

    def destroy_group(self) -> None:
        """Leave the group. Waits for no other rank."""
        self.group.finish()
        self.group.tell_departure(DepartureKind.LEFT, "left the group with destroy_collective_group()")
        self.group.close()

    @_errors_of_torch()
    def allreduce(self, tensor: Sequence[Any], allreduce_options: Any = types.AllReduceOptions) -> None:
        """Replace the tensor by the sum over all ranks, or what the op says."""
        all_reduce(_only(tensor), _op(allreduce_options), self.group)

    @_errors_of_torch()
    def barrier(self, barrier_options: Any = None) -> None:  # noqa: ARG002
        """Wait for all ranks."""
        barrier(self.group)

    @_errors_of_torch()
    def reduce(self, tensor: Sequence[Any], reduce_options: Any = types.ReduceOptions) -> None:
        """Replace the root's tensor by the sum over all ranks, or what the op says."""
        reduce(_only(tensor), reduce_options.root_rank, _op(reduce_options), self.group)

    @_errors_of_torch()
    def allgather(self, tensor_list: Sequence[Any], tensor: Sequence[Any], allgather_options: Any = None) -> None:  # noqa: ARG002
        """Fill the list with the tensors of all ranks."""
        all_gather(_list(tensor_list), _only(tensor), self.group)

    @_errors_of_torch()
    def broadcast(self, tensor: Sequence[Any], broadcast_options: Any = types.BroadcastOptions) -> None:
        """Replace the tensor by the root's."""
        broadcast(_only(tensor), broadcast_options.root_rank, self.group)

    @_errors_of_torch()
    def reducescatter(
        self, tensor: Sequence[Any], tensor_list: Sequence[Any], reducescatter_options: Any = types.ReduceScatterOptions
    ) -> None:
        """Replace the tensor by the sum of all ranks' tensors for this rank. The list stays as it is."""
        reduce_scatter(_only(tensor), _list(tensor_list), _op(reducescatter_options), self.group)

    @_errors_of_torch()
    def send(self, tensor: Sequence[Any], send_options: Any) -> None:
        """Send a tensor to a rank, which receives it."""
        send(_only(tensor), send_options.dst_rank, self.group)

    @_errors_of_torch()
    def recv(self, tensor: Sequence[Any], recv_options: Any) -> None:
        """Replace the tensor by the message of a rank."""
        recv(_only(tensor), recv_options.src_rank, self.group)


def _serve(key: str) -> Any:
    """Rank 0's part: a store for this group, whose address Ray keeps under a key."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's own __all__ omits it

    address = get_node_ip_address()
    store = TCPStore(address, 0, None, is_master=True, timeout=timedelta(hours=1), wait_for_workers=False)
    internal_kv._internal_kv_put(key, f"{address} {store.port}", overwrite=True)  # noqa: SLF001  Ray's groups use it
    return store


def _find(key: str, rank: int, timeout_s: float) -> Any:
    """The store that rank 0 serves. Raises WaitTimeout if rank 0 does not come."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    start = time.monotonic()
    while True:
        address, _, port = (internal_kv._internal_kv_get(key) or b"").decode().partition(" ")  # noqa: SLF001
        if port and try_to_reach(address, int(port)) == (True, ""):  # else it is the store of a group that has failed
            return TCPStore(address, int(port), None, is_master=False, timeout=timedelta(hours=1))
        if time.monotonic() - start > timeout_s:
            raise WaitTimeout("init_collective_group()", timeout_s, (0,), rank)
        time.sleep(_ASK_S)


def _op(options: Any) -> str:
    """Ray's op, by unisono's name."""
    return str(options.reduceOp.name).lower()


def _only(tensors: Sequence[Any]) -> torch.Tensor:
    """The tensor of a call; Ray passes a list with one per device."""
    (tensor,) = tensors
    return _tensor(tensor)


def _list(lists: Sequence[Any]) -> list[torch.Tensor]:
    """The list of tensors of a call; Ray passes a list with one list per device."""
    (tensors,) = lists
    return [_tensor(tensor) for tensor in tensors]


def _tensor(value: Any) -> torch.Tensor:
    """A value as a tensor with the same memory. Raises DTypeError."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    raise DTypeError(f"tensor: expected a torch.Tensor or a numpy array, not {type(value).__name__}")
