"""`cluster("2x2")`: hosts in network namespaces, for one test; where they cannot be, the test is skipped in words."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from tests.support.cluster import Cluster, why_not
from unisono.schedule import Hosts


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if item.path.parent.name == "cluster":
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def _possible() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def cluster(_possible: None) -> Iterator[Callable[[str], Cluster]]:
    """cluster(shape): its hosts, which are gone after the test."""
    with ExitStack() as stack:
        yield lambda shape: stack.enter_context(closing(Cluster(Hosts.parse(shape))))
