"""Tests whose bodies run on all ranks of a world, and what these return. Where that says nothing: `@mark.ranks`.

An argument that names a parameter of the test, such as `in_world("size")`, stands for its value.
"""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any

import unisono
from tests.support.faults import DEADLINE_S
from unisono.schedule import Hosts

Decorator = Callable[[Callable[..., Any]], Callable[..., None]]
_ANYTHING: Any = object()


def in_new_world(ranks: int | str | None = None, **how: Any) -> Decorator:
    """Decorator: run the test on ranks of its own. gives: what they return; all_give: what each of them does."""

    def run(test: Callable[..., Any], given: dict[str, Any], **options: Any) -> list[Any]:
        with unisono.World(**{"timeout_s": DEADLINE_S, **options}) as world:
            return world.run(test, **given)

    return _on_ranks((), run, ranks=ranks, **how)


def in_world(shape: int | str, **how: Any) -> Decorator:
    """The same on ranks that tests share; shape: how many, or on which hosts, such as "2x2"."""

    def run(test: Any, given: dict[str, Any], shape: Any, worlds: Any, on_hosts: Any) -> Any:
        return (on_hosts if isinstance(shape, str) else worlds)(shape).run(test, **given)

    return _on_ranks(("worlds", "on_hosts"), run, shape=shape, **how)


def in_process_group(size: int | str, backend: str | None = "unisono", **how: Any) -> Decorator:
    """The same in a process group of torch.distributed: see `TorchRanks`."""

    def run(test: Any, given: dict[str, Any], ranks: Any, **how: Any) -> Any:
        return ranks(**how)(lambda: test(**given))

    return _on_ranks(("ranks",), run, size=size, backend=backend, **how)


def as_over_gloo(shape: int | str, *names: str) -> Decorator:
    """In process groups of so many ranks, or on such hosts, the test returns what it does over Gloo, to the last bit.

    It returns several values. Of two summands there is one order. names: of our groups, "unisono" or "gloo"; the first.
    """

    def run(test: Any, given: dict[str, Any], ranks: Any, shape: Any) -> Any:
        hosts = Hosts.parse(f"{shape}")
        size, on_hosts = hosts.ranks, f"{shape}" if hosts.spans else ""
        theirs = ranks(size, "gloo")(lambda: test(**given))
        assert len(_leaves(theirs[0])) > 1
        for name in names or ["unisono"]:
            ours = ranks(size, name, hosts=on_hosts, named=range(size) if name == "gloo" else None)(
                lambda: test(**given)
            )
            pairs = [pair for rank in zip(ours, theirs, strict=True) for pair in zip(*rank, strict=False)]
            assert ours == theirs, f"{name}: {[pair for pair in pairs if pair[0] != pair[1]][:3]}"
        return theirs

    return _on_ranks(("ranks",), run, shape=shape)


def _leaves(found: Any) -> set[Any]:
    return set().union(*map(_leaves, found)) if isinstance(found, list | tuple) else {found}


def _on_ranks(
    fixtures: tuple[str, ...], run: Any, *, gives: Any = _ANYTHING, all_give: Any = _ANYTHING, **how: Any
) -> Decorator:
    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        own = signature(test).parameters

        @wraps(test)
        def on_ranks(**given: Any) -> None:
            made = {name: given.pop(name) for name in fixtures}
            named = {name: given[one] if isinstance(one, str) and one in own else one for name, one in how.items()}
            ends = run(test, given, **named, **made)
            assert gives is _ANYTHING or ends == gives, f"{ends}, not {gives}"
            assert all_give is _ANYTHING or ends == [all_give] * len(ends), f"{ends}, not each {all_give}"

        more = [Parameter(name, Parameter.KEYWORD_ONLY) for name in fixtures]
        on_ranks.__signature__ = Signature([*own.values(), *more])  # type: ignore[attr-defined]  # pytest asks for it
        return on_ranks

    return decorate
