"""Ranks that tests share: a world per size, and per shape of hosts, for a session. And which tests are quick."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import unisono
from tests.support.torch_ranks import TorchRanks
from unisono.schedule import Hosts

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without a terminal starts what it puts in the background like this; tests of Ctrl-C need the usual way.
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["UNISONO_MEASURED"] = ""  # the tests are about the defaults, whatever `unisono tune` has found here

WHOLE = frozenset({"draw", "ops", "schedule", "testing"})
"""Folders of which all tests are quick: they take seconds together."""

LONG = frozenset({
    "cluster", "fuzz", "ray", "test_algorithms.py", "test_bench_torch.py", "test_demo.py", "test_leaks.py",
    "test_random.py", "test_sample.py",
})  # fmt: skip
"""Folders and files of which no test is quick."""

FEW = 2
"""Of every other file the first two functions are quick, with their first two cases: files begin with what is basic."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the quick tests, and run them before all others."""
    cases: Counter[tuple[Path, str]] = Counter()
    functions: Counter[Path] = Counter()
    for item in items:
        key = item.path, getattr(item, "originalname", item.name)
        functions[item.path] += key not in cases
        cases[key] += 1
        basic = functions[item.path] <= FEW and cases[key] <= FEW and LONG.isdisjoint(item.path.parts[-2:])
        if basic or item.path.parent.name in WHOLE:
            item.add_marker(pytest.mark.quick)
    items.sort(key=lambda item: item.get_closest_marker("quick") is None)


@pytest.fixture(scope="session")
def worlds() -> Iterator[Callable[[int], unisono.World]]:
    """worlds(p): a world of p ranks, the same for everybody who asks. A run that fails takes its ranks with it only.

    With UNISONO_TEST_HOSTS=2 in the environment, the ranks behave as if on two hosts, half of them on each.
    """
    with ExitStack() as stack:
        made: dict[int, unisono.World] = {}

        def of(size: int) -> unisono.World:
            if size not in made:
                several = os.environ.get("UNISONO_TEST_HOSTS") == "2" and size > 1
                hosts = f"{size - size // 2}+{size // 2}" if several else None
                made[size] = stack.enter_context(unisono.World(size, timeout_s=60, hosts=hosts))
            return made[size]

        yield of


@pytest.fixture(scope="session")
def on_hosts() -> Iterator[Callable[[str], unisono.World]]:
    """on_hosts("2x2"): a world of this shape, the same for everybody who asks."""
    with ExitStack() as stack:
        made: dict[str, unisono.World] = {}

        def of(shape: str) -> unisono.World:
            if shape not in made:
                made[shape] = stack.enter_context(unisono.world(Hosts.parse(shape).ranks, timeout_s=90, hosts=shape))
            return made[shape]

        yield of


@pytest.fixture
def ranks(worlds: Callable[[int], unisono.World], tmp_path: Path) -> TorchRanks:
    """ranks(p)(function): the function on p ranks of a process group of torch.distributed."""
    return TorchRanks(worlds, tmp_path)
