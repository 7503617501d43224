"""`cluster("2x2")`: hosts in network namespaces, for one test; where they cannot be, the test is skipped in words."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from tests.support.cluster import Cluster, why_not
from unisono.schedule import Hosts


@pytest.fixture
def cluster() -> Iterator[Callable[[str], Cluster]]:
    """cluster(shape): its hosts, which are gone after the test."""
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as stack:
        yield lambda shape: stack.enter_context(closing(Cluster(Hosts.parse(shape))))
