"""Worlds that tests of messages end: on one host, and once more as if odd ranks were on another one."""

from typing import Any

import pytest

import unisono
from tests.support.worlds import NewWorld


def _make(size: int, hosts: int, **options: Any) -> unisono.World:
    if min(hosts, size) == 1:
        return unisono.World(size, **options)
    return unisono.World(size, hosts=f"{size - size // 2}+{size // 2}:round_robin", **options)


@pytest.fixture(params=[1, 2], ids=["one host", "two hosts"], scope="session")
def hosts(request: pytest.FixtureRequest) -> int:
    """On how many hosts the ranks of `new_world` are."""
    return int(request.param)


@pytest.fixture
def new_world(hosts: int) -> NewWorld:
    """new_world(p, ...): a World of p ranks, for a test that does not leave it as it was."""
    return lambda size, **options: _make(size, hosts, **options)
