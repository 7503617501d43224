"""The classes that torch sees: a process group, and from torch 2.14 on a backend within it; `create` makes a group.
With "cpu:unisono,cuda:nccl" the group has backends for tensors of other devices, too.

Both are `Calls` in Python. Python code calls their methods directly, C++ code looks them up by name.

Two operators of torch call the backend of a group in C++. Up to torch 2.13, where our groups have no backend, they call
the group instead (`find_our_groups`). Tensors of other devices, and other groups, go to torch's own kernels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import FrameType, WrapperDescriptorType
from typing import Any, Self

import torch
from torch import distributed
from torch._C import DispatchKey
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore, ProcessGroup

from ...base.config import Config
from ...base.errors import ArgumentError
from ...base.release import NAME
from ...base.units import integer
from ...ranks.group.group import Group
from ...ranks.group.sub_groups import make_sub_group
from ...ranks.rendezvous.launchers import start_of_job
from ...ranks.rendezvous.participant import may_come
from .answers import Answers
from .group_methods import Calls
from .hooks import Hooks, call_abort_hooks
from .join_group import go_on, join, leave, leave_when_dropped, store_of_meeting
from .patch import hide_from_dynamo, make_buffer, patch_torch, share_sharded
from .patch_hooks import patch_hooks
from .reconfigure import Reconfigurable, unconnected
from .to_torch import Finished, TorchWork, as_torchs

BACKEND_IN_PYTHON = not isinstance(c10d.Backend.__init__, WrapperDescriptorType)
"""Can a backend be written in Python? Up to torch 2.13, torch's class has no constructor of its own."""

_CPU = torch.device("cpu")

_NAMESPACE = "_c10d_functional"
_library: Any = None


class UnisonoProcessGroup(Reconfigurable, c10d.ProcessGroup):  # type: ignore[misc]  # C++ calls one form of each method only
    """A process group of torch.distributed. C++ code calls the methods with capital letters."""

    supports_shrinking = supports_splitting = True
    backend: UnisonoBackend

    def __init__(self, group: Group, store: c10d.Store, name: str = "", description: str = "undefined") -> None:
        c10d.ProcessGroup.__init__(self, group.rank, group.size)  # type: ignore[call-arg]  # it takes these
        self.group = group
        self._went_on, self._splits = False, 0
        self._store: Any = store
        self._name, self._description = name, description
        self.abort_hooks = {}

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Set the name that torch gives the group."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """The name that torch has given the group."""
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Set the user's description of the group."""
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        """The user's description of the group."""
        return self._description

    def rank(self) -> int:
        """This process's rank."""
        share_sharded()
        return self.group.rank

    name = Calls.getBackendName

    def _get_backend_name(self) -> str:
        """Gloo's name, if all tensors are of the CPU.

        By this name torch finds that a sharded tensor is of the CPU on a rank that has no part of it.
        """
        return self.getBackendName() if self.elsewhere else "gloo"

    def get_group_store(self) -> Any:
        """The store through which the ranks made the group."""
        return self._store

    def _get_sequence_number_for_group(self) -> int:
        """The number of collective calls that this rank has made in the group."""
        return self.group.engine.call_number - 1

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: sequence numbers start at zero on every rank."""

    @property
    def _device_types(self) -> list[torch.device]:
        others = super()._device_types if self.elsewhere else []
        return [_CPU, *(device for device in others if device != _CPU)]

    def _get_backend(self, device: torch.device) -> Any:
        """The backend for tensors of a device; for CPU tensors it is the group itself."""
        if self.elsewhere and torch.device(device).type != "cpu":
            return super()._get_backend(device)
        return self

    def _backend_id(self, kind: Any) -> int:
        """The number of the backend of a type; torch's types of ours are those of the name that was asked for."""
        ours = distributed.Backend.backend_type_map.get(self.asked_as)
        return id(self) if kind == ours else super()._backend_id(kind)

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Does the group have an allocator for buffers of collectives? fully_shard asks."""
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:  # noqa: ARG002
        """An uninitialised flat tensor, in shared memory if it is long enough for zero copy."""
        return make_buffer(self.group, size, dtype)

    def shrink(self, without: list[int], shrink_flags: int = 0, options: Any = None) -> UnisonoProcessGroup:  # noqa: ARG002
        """The group of the other ranks; `torch.distributed.shrink_group` calls this on each of them.

        Raises PeerGone if more ranks have failed than the ranks in `without`; `failed` has all of them.
        """
        smaller = go_on(self.group, without)
        made = self._of(smaller, self._store, self._name, self._description)
        made.bound_device_id = self.bound_device_id
        self._went_on = True
        return made

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,  # noqa: ARG002  those of other backends
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> UnisonoProcessGroup | None:
        """The group of these ranks, in this order; None on the others. All ranks of this group call it."""
        name, description = group_name or f"{self._name}:split:{ranks}", f"{self._description}:split:{self._splits}"
        self._splits += 1
        with as_torchs():
            self._check_devices(device_types)
            chosen, size = [integer("ranks", rank) for rank in ranks], self.group.size
            if not chosen or len(set(chosen) & {*range(size)}) < len(chosen):
                raise ArgumentError(f"ranks: got {chosen}, expected at least one of the {size} ranks, and each once")
            if self.group.rank not in chosen:
                return None
            limit_s = self.group.timeout_s if timeout is None else timeout.total_seconds()
            of_world = [self.group.world_ranks[rank] for rank in chosen]
            group = make_sub_group(self.group, chosen.index(self.group.rank), of_world, name, limit_s)
            return self._of(group, PrefixStore(f"{name}/", self._store), name, group_desc or description)

    def merge_remote_group(
        self,
        store: c10d.Store,
        size: int,
        timeout: timedelta = timedelta(minutes=30),
        group_name: str | None = None,
        group_desc: str | None = None,
    ) -> UnisonoProcessGroup:
        """A group with the ranks of other groups, `size` in all, in the order in which they come to the store."""
        name, description = group_name or f"{self._name}:merge", group_desc or f"{self._description}:merge"
        with as_torchs():
            self._check_devices()
            if (rank := store.add("mergeGroupRank", 1) - 1) >= size:
                raise ArgumentError(f"size: {size} ranks have used this store before. Use a new PrefixStore.")
            group = join(store, rank, size, name, timeout.total_seconds(), apart=True)
            made = self._of(group, store, name, description)
            leave_when_dropped(made, group)
            return made

    def _of(self, group: Group, store: Any, name: str, description: str) -> Self:
        made = type(self)(group, store, name, description)
        add_backend(made, group)
        return made

    def _check_devices(self, wanted: Sequence[torch.device] | None = None) -> None:
        """Raise ArgumentError if the new group should have backends for devices other than the CPU."""
        if others := [device.type for device in wanted or self._device_types if device.type != "cpu"]:
            raise ArgumentError(f"cannot split or merge a group with backends for {', '.join(others)}. Use new_group.")

    def shutdown(self) -> None:
        """Wait for the calls in the background, and leave the group, unless a smaller one has taken its place."""
        self._store = None
        if self._went_on:
            return
        leave(self.group, with_store=distributed.group.WORLD is self)

    def abort(self) -> None:
        """Leave the group at once; calls in progress raise an error, here and on the other ranks."""
        call_abort_hooks(self.abort_hooks)
        self.group.abort()


class UnisonoBackend(Calls, c10d.Backend):
    """A backend for `batch_p2p_ops` and the other operators of torch that take the backend of a device from the group.

    It does not serve a group of torch's own class. Through torch's dispatcher small calls are slower, and works do not
    say whether they have ended, what they raised, or from which rank a message came.
    """

    # All methods must be here: for a missing one, C++ asks Python, Python asks C++, and so on for ever.
    supports_shrinking = False

    def __init__(self, made: UnisonoProcessGroup, group: Group) -> None:
        c10d.Backend.__init__(self, group.rank, group.size)
        self.group, self.abort_hooks = group, made.abort_hooks


def add_backend(made: UnisonoProcessGroup, group: Group) -> None:
    """Give a process group a backend for CPU tensors. If torch allows none in Python, change its operators instead."""
    if not BACKEND_IN_PYTHON:
        find_our_groups()
    else:
        # A process group has one backend of each type, for all devices. No other backend has this type.
        undefined = c10d.ProcessGroup.BackendType.UNDEFINED
        made.backend = UnisonoBackend(made, group)
        made._register_backend(_CPU, undefined, made.backend)  # noqa: SLF001


hide_from_dynamo(UnisonoProcessGroup, UnisonoBackend, Answers, Calls, Finished, Hooks, TorchWork)


def find_our_groups() -> None:
    """Let these operators on CPU tensors call our groups. Idempotent."""
    global _library  # noqa: PLW0603  the kernels live as long as this object
    if _library is None:
        _library = torch.library.Library(_NAMESPACE, "IMPL")  # type: ignore[no-untyped-call]
        _library.impl("all_gather_into_tensor_out", _all_gather_into_tensor_out, "CPU")
        _library.impl("batch_p2p_ops", _batch_p2p_ops, "CPU")


def _all_gather_into_tensor_out(shard: Any, group_size: int, group_name: Any, *, out: Any) -> Any:
    group = _ours(group_name)
    if group is None:
        return _torchs("all_gather_into_tensor_out", shard, group_size, group_name, out=out)
    opts = c10d.AllgatherOptions()
    opts.asyncOp = True
    c10d._register_work(out, group.all_gather_single(out, shard, opts))  # noqa: SLF001
    return out


def _batch_p2p_ops(kinds: list[str], peers: list[int], tags: list[int], tensors: Any, group_name: Any) -> Any:
    group = _ours(group_name)
    if group is None:
        return _torchs("batch_p2p_ops", kinds, peers, tags, tensors, group_name)
    cpu = torch.device("cpu")
    group._start_coalescing(cpu)  # noqa: SLF001
    try:
        for kind, peer, tag, tensor in zip(kinds, peers, tags, tensors, strict=True):
            (group.send if kind == "isend" else group.recv)([tensor], peer, tag)
    finally:
        work = group._end_coalescing(cpu)  # noqa: SLF001
    results = [tensor if kind == "irecv" else tensor.new_empty(0) for kind, tensor in zip(kinds, tensors, strict=True)]
    for result in results:
        c10d._register_work(result, work)  # noqa: SLF001
    return results


def _ours(group_name: Any) -> Any:
    """The group of this name, if unisono has made it; else None."""
    resolve: Any = c10d._resolve_process_group  # noqa: SLF001
    group = resolve(group_name) if isinstance(group_name, str) else group_name
    return group if isinstance(group, Calls) else None


def _torchs(name: str, *args: Any, **options: Any) -> Any:
    """Call torch's own kernel."""
    operator = getattr(getattr(torch.ops, _NAMESPACE), name).default
    return operator._op_dk(DispatchKey.CompositeExplicitAutograd, *args, **options)  # noqa: SLF001


def create(
    options: Any,
    pg_options: Any,
    kind: type[UnisonoProcessGroup] = UnisonoProcessGroup,
    *,
    helper: Mapping[str, Any] | None = None,
    why_absent: Callable[[int], str] = may_come,
) -> UnisonoProcessGroup:
    """Return the process group of these members.

    options: torch's description of the group: store, rank, size, timeout. Where it names no members, and torch does not
    make its group of all ranks, the members may be ranks of several jobs.
    pg_options: a `Config` or None; anything else is meant for the backend of another device.
    kind: the class of the process group.
    helper: see `_torchs_helper`; None: to be found.
    why_absent: see `join`.
    """
    patch_torch()
    patch_hooks()
    helper = _torchs_helper() if helper is None else helper
    apart = not options.global_ranks_in_group and helper.get("group_desc") != "default_pg"
    if not apart and (start := start_of_job(os.environ)):
        options.store = PrefixStore(start, options.store)
    config = pg_options if isinstance(pg_options, Config) else None
    where = options.store, options.group_rank, options.group_size, options.group_id, options.timeout.total_seconds()
    with as_torchs():
        devices = other_devices(helper, kind.asked_as)
        if getattr(options, "enable_reconfigure", False) and not devices:
            group = unconnected(*where[1:], config)
        else:
            group = join(*where, options.global_ranks_in_group, config, apart=apart, why_absent=why_absent)
            options.store = store_of_meeting(options.store, group)  # for the other backends
        made = kind(group, options.store)
        add_backend(made, made.group)
        add_other_backends(made, devices, options, None if config else pg_options)
        made.bound_device_id = helper.get("device_id")
    return made


def _torchs_helper() -> Mapping[str, Any]:
    """The local variables of torch's function that makes process groups; empty if a program is the caller.

    torch does not pass on all that it knows, and what it sets on its own group is lost: ours takes the place of this.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way to look at one's callers
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


def other_devices(helper: Mapping[str, Any], ours: str) -> dict[str, str]:
    """Return the backends that the user has named for devices other than the CPU, by device.

    helper: see `_torchs_helper`.
    ours: the name by which the user has asked for our group. Other devices with this name get no backend.

    Raises ArgumentError if our backend is named for another device.
    """
    if not helper:
        return {}
    named = dict(helper["backend_config"].get_device_backend_map())
    for device, backend in named.items():
        if backend == NAME and device != "cpu":
            raise ArgumentError(f"{device}:{NAME}: this backend takes only CPU tensors. Write cpu:{NAME}.")
    return {device: backend for device, backend in named.items() if device != "cpu" and backend != ours}


def add_other_backends(group: Any, devices: dict[str, str], options: Any, pg_options: Any) -> None:
    """Make these backends and register them with the group.

    options, pg_options: what torch has passed for the backends of this group; `options.store` is replaced.
    """
    store = options.store
    for device, backend in devices.items():
        options.store = PrefixStore(f"{device} beside {NAME}", store)
        kind = distributed.Backend.backend_type_map.get(backend, ProcessGroup.BackendType.CUSTOM)
        group._register_backend(torch.device(device), kind, _make(backend, options, pg_options))  # noqa: SLF001
        group.elsewhere = group.through_torch = True


def _make(backend: str, options: Any, pg_options: Any) -> Any:
    where = options.store, options.group_rank, options.group_size
    known: Any = distributed.Backend
    if backend == "gloo":
        return c10d.ProcessGroupGloo(*where, timeout=options.timeout)
    if hasattr(known, "_ensure_backend_registered"):  # from torch 2.14 on, where Gloo and NCCL are plugins, too
        known._ensure_backend_registered(backend)  # noqa: SLF001
    plugin = known._plugins.get(backend.upper())  # noqa: SLF001
    made: Any
    if plugin is not None:
        given = (options, pg_options) if plugin.extended_api else (*where, options.timeout)
        made = plugin.creator_fn(*given)
    elif backend == "nccl":
        if not distributed.is_nccl_available():
            raise ArgumentError(
                f"nccl: torch {torch.__version__} was built without NCCL. Install a build of torch with CUDA."
            )
        settings = distributed.ProcessGroupNCCL.Options()
        settings._timeout = options.timeout  # noqa: SLF001  as torch itself does
        settings.global_ranks_in_group, settings.group_name = options.global_ranks_in_group, options.group_id
        made = distributed.ProcessGroupNCCL(*where, settings)
        made._set_sequence_number_for_group()  # noqa: SLF001
    else:
        raise ArgumentError(f"{backend}: torch {torch.__version__} cannot create this backend together with {NAME}")
    if isinstance(made, ProcessGroup):
        raise ArgumentError(f"{backend}: is a process group, not a backend, and cannot be combined with {NAME}")
    return made
