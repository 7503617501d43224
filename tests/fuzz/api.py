"""The two APIs that a program can use, with one form: unisono's own, and torch.distributed with a backend."""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

import unisono
from unisono.base.config import SETTINGS, environment_name

_ROOT_AT = {"reduce": 1, "broadcast": 1, "scatter": 2, "gather": 2}  # where a root is among the arguments

_IN_TORCH = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}


class Native:
    """unisono's own calls."""

    def __init__(self) -> None:
        self.world: Any = unisono.init()

    def place(self, group: Any) -> tuple[int, int]:
        """This rank's number in a group, and the group's size."""
        return group.rank, group.size

    def collective(self, case: Any, arguments: list[Any], group: Any, algorithm: str | None) -> Any:
        """case: a Case, or a Barrier."""
        return getattr(unisono, case.form)(*arguments, group=group, async_op=case.async_op, algorithm=algorithm)

    def objects(self, form: str, *arguments: Any, root: int | None, group: Any) -> None:
        getattr(unisono, form)(*arguments, *(() if root is None else (root,)), group)

    def new_group(self, ranks: Sequence[int], parent: Any) -> Any:
        return unisono.new_group(ranks, group=parent) or None

    def leave(self, group: Any) -> None:
        unisono.destroy_group(group)

    def p2p(self, name: str, thing: Any, peer: int | None, group: Any, tag: int) -> Any:
        """send, recv, isend or irecv of a tensor, or a call of objects."""
        return getattr(unisono, name)(thing, peer, group, tag)

    def batch(self, operations: list[tuple[str, torch.Tensor, int]], group: Any, tag: int) -> list[Any]:
        made = [unisono.P2POp(getattr(unisono, name), tensor, peer, group, tag) for name, tensor, peer in operations]
        return unisono.batch_isend_irecv(made)


class Torch:
    """torch.distributed, with our backend. meeting: a file where the ranks meet, for their first program."""

    def __init__(self, settings: Sequence[tuple[str, float | str]], meeting: str) -> None:
        from torch import distributed

        from unisono.integrations.torch import register

        self._dist: Any = distributed
        if not distributed.is_initialized():
            register()
            for name, value in settings:
                if name in SETTINGS:
                    os.environ[environment_name(name)] = f"{value}"
            place: Any = {"rank": unisono.get_rank(), "world_size": unisono.get_world_size()}
            distributed.init_process_group("unisono", f"file://{meeting}", timeout=timedelta(seconds=300), **place)
        self.world: Any = distributed.group.WORLD

    def place(self, group: Any) -> tuple[int, int]:
        return group.rank(), group.size()

    def collective(self, case: Any, arguments: list[Any], group: Any, _algorithm: str | None) -> Any:
        given = [self._op(argument) for argument in arguments]
        if case.form in _ROOT_AT:
            given[_ROOT_AT[case.form]] = self._global(group, given[_ROOT_AT[case.form]])
        name = case.form if hasattr(self._dist, case.form) else _IN_TORCH[case.form]  # torch has got our name in 2.13
        return getattr(self._dist, name)(*given, group=group, async_op=case.async_op)

    def objects(self, form: str, *arguments: Any, root: int | None, group: Any) -> None:
        at = () if root is None else (self._global(group, root),)
        getattr(self._dist, form)(*arguments, *at, group=group)

    def new_group(self, ranks: Sequence[int], _parent: Any) -> Any:
        made = self._dist.new_group(sorted(ranks))
        return made if self._dist.get_rank() in ranks else None

    def leave(self, group: Any) -> None:
        self._dist.destroy_process_group(group)

    def p2p(self, name: str, thing: Any, peer: int | None, group: Any, tag: int) -> Any:
        peer = None if peer is None else self._global(group, peer)
        tagged = {} if name.endswith("_object_list") else {"tag": tag}
        found = getattr(self._dist, name)(thing, peer, group=group, **tagged)
        return self._dist.get_group_rank(group, found) if name == "recv" else found

    def batch(self, operations: list[tuple[str, torch.Tensor, int]], group: Any, tag: int) -> list[Any]:
        made = [(getattr(self._dist, name), tensor, self._global(group, peer)) for name, tensor, peer in operations]
        works: list[Any] = self._dist.batch_isend_irecv([self._dist.P2POp(*one, group, tag) for one in made])
        return works

    def _global(self, group: Any, rank: int) -> int:
        return int(self._dist.get_global_rank(group, rank))

    def _op(self, argument: Any) -> Any:
        """torch's op for a name of ours, or for our premultiplied sum."""
        if isinstance(argument, str):
            return getattr(self._dist.ReduceOp, argument.upper())
        if hasattr(argument, "factor"):
            return self._dist._make_nccl_premul_sum(argument.factor)
        return argument
