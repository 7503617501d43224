"""Ranks that tests share: one world per size for a whole session. And which tests are quick, and come first."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import unisono
from tests.support.torch_ranks import TorchRanks

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without a terminal starts what it puts in the background like this; tests of Ctrl-C need the usual way.
    signal.signal(signal.SIGINT, signal.default_int_handler)

WHOLE = frozenset({"draw", "ops", "schedule", "testing"})
"""Folders of which all tests are quick: they take seconds together."""

FEW = 2
"""Of every other file, so many tests are quick: the first ones, since files begin with what is basic."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the quick tests, at least one of every file, and run them before all others."""
    seen: Counter[Path] = Counter()
    functions: set[tuple[Path, str]] = set()
    for item in items:
        name = getattr(item, "originalname", item.name)  # without its parameters: the first ones stand for all
        first = (item.path, name) not in functions
        functions.add((item.path, name))
        seen[item.path] += first
        if item.path.parent.name in WHOLE or (first and seen[item.path] <= FEW):
            item.add_marker(pytest.mark.quick)
    items.sort(key=lambda item: item.get_closest_marker("quick") is None)

@pytest.fixture(scope="session")
def worlds() -> Iterator[Callable[[int], unisono.World]]:
    """worlds(p): a world of p ranks, the same for everybody who asks. A run that fails takes its ranks with it only."""
    with ExitStack() as stack:
        made: dict[int, unisono.World] = {}

        def of(size: int) -> unisono.World:
            if size not in made:
                made[size] = stack.enter_context(unisono.World(size, timeout_s=60))
            return made[size]

        yield of


@pytest.fixture
def ranks(worlds: Callable[[int], unisono.World], tmp_path: Path) -> TorchRanks:
    """ranks(p)(function): the function on p ranks of a process group of torch.distributed."""
    return TorchRanks(worlds, tmp_path)
