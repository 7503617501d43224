"""Tests on ranks: what they pass, how they die, and decorators for tests that need a world of their own.

Others have the mark `ranks`. An argument of a decorator that names a parameter of the test, such as
`in_new_world("size")`, stands for its value.
"""

import os
import signal
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any

import torch

import unisono

Worlds = Callable[[int], unisono.World]  # the fixture worlds
Decorator = Callable[[Callable[..., Any]], Callable[..., None]]

DEADLINE_S = 60.0
"""For a whole run, in which nothing takes long: but busy processors may take 20 s to start its processes."""
_ANYTHING: Any = object()


class _Failed:
    """Equal to the failure of any rank, as `return_exceptions` brings it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, unisono.RankFailed)

    __hash__ = None  # type: ignore[assignment]


FAILED: Any = _Failed()


def die() -> None:
    """End this process as nothing can stop it."""
    os.kill(os.getpid(), signal.SIGKILL)


def all_pids() -> list[int]:
    """The processes of all ranks, which all of them ask for."""
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(unisono.get_world_size())]
    unisono.all_gather(pids, torch.tensor([os.getpid()]))
    return [int(pid) for pid in pids]


def values(count: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Whole numbers below 251, of which each is another one for 251 elements, and for 251 seeds."""
    period = (torch.arange(251) * 7 + seed * 131) % 251
    return period.to(dtype).repeat(-(-count // 251))[:count]


def in_new_world(ranks: int | str | None = None, **how: Any) -> Decorator:
    """Decorator: run the test on ranks of its own. gives: what they return; all_give: what each of them does."""

    def run(test: Callable[..., Any], given: dict[str, Any], **options: Any) -> list[Any]:
        with unisono.World(**{"timeout_s": DEADLINE_S, **options}) as world:
            return world.run(test, **given)

    return on_ranks(run, ranks=ranks, **how)


def on_ranks(
    run: Any, fixtures: tuple[str, ...] = (), *, gives: Any = _ANYTHING, all_give: Any = _ANYTHING, **how: Any
) -> Decorator:
    """Decorator: `run` the test with its own arguments, these ones, and these fixtures."""

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        own = signature(test).parameters

        @wraps(test)
        def wrapped(**given: Any) -> None:
            made = {name: given.pop(name) for name in fixtures}
            named = {name: given[one] if isinstance(one, str) and one in own else one for name, one in how.items()}
            ends = run(test, given, **named, **made)
            assert gives is _ANYTHING or ends == gives, f"{ends}, not {gives}"
            assert all_give is _ANYTHING or ends == [all_give] * len(ends), f"{ends}, not each {all_give}"

        more = [Parameter(name, Parameter.KEYWORD_ONLY) for name in fixtures]
        wrapped.__signature__ = Signature([*own.values(), *more])  # type: ignore[attr-defined]  # pytest asks for it
        return wrapped

    return decorate
