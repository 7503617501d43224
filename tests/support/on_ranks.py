"""`on_ranks`: a test that the ranks of a world run, which all tests share. `on_torch_ranks`: of a process group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from typing import Any

import pytest

from tests.support.torch_ranks import TorchRanks


def on_ranks(*worlds: int | str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: each rank of a world runs the test, with copies of its arguments.

    worlds: numbers of ranks, or shapes of hosts, such as "2x2". With several, each is a case. An argument `ranks` of
    the test is the one of its case.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        wanted = signature(test).parameters
        fixtures = {"on_hosts" if isinstance(world, str) else "worlds" for world in worlds}

        @wraps(test)
        def run(**given: Any) -> None:
            ranks = given.pop("ranks", worlds[0])
            made = {fixture: given.pop(fixture) for fixture in fixtures}
            if "ranks" in wanted:
                given["ranks"] = ranks
            made["on_hosts" if isinstance(ranks, str) else "worlds"](ranks).run(test, **given)

        names = {*wanted, *fixtures} - {"ranks"} | ({"ranks"} if len(worlds) > 1 else set())
        parameters = [Parameter(name, Parameter.KEYWORD_ONLY) for name in sorted(names)]
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what pytest asks which fixtures it wants
        return pytest.mark.parametrize("ranks", worlds)(run) if len(worlds) > 1 else run

    return decorate


def on_torch_ranks(size: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: each rank of a process group of torch.distributed runs the test, with copies of its arguments."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(ranks: TorchRanks, **given: Any) -> None:
            ranks(size)(partial(test, **given))

        names = {*signature(test).parameters, "ranks"}
        parameters = [Parameter(name, Parameter.KEYWORD_ONLY) for name in sorted(names)]
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate
