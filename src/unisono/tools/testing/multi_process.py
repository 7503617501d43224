"""`ranks`: a decorator that runs a test on several ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import unisono

from ...base.errors import ArgumentError


def ranks(*sizes: int, timeout_s: float = 60.0) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Run a test function on every rank of a new group, for each of these group sizes in turn.

        @ranks(2, 3, 7)
        def test_sum():
            tensor = torch.full((10,), float(unisono.get_rank()))
            unisono.all_reduce(tensor)
            assert tensor[0] == sum(range(unisono.get_world_size()))

    Arguments, such as pytest's fixtures, are copied to every rank. Raises RankFailed, with the rank's traceback, if a
    rank raises, and WaitTimeout, with the stacks of the ranks, if one size takes longer than timeout_s seconds.
    """
    if not sizes or min(sizes) < 1:
        raise ArgumentError(f"ranks{sizes}: give one or more sizes of groups, each at least 1")

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(function)
        def on_all_sizes(*args: Any, **kwargs: Any) -> None:
            for size in sizes:
                unisono.run(function, ranks=size, args=args, kwargs=kwargs, timeout_s=timeout_s)

        return on_all_sizes

    return decorate
