"""Weak sets that are listed while another thread adds to them, and a collector that leaves new modules alone."""

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from unisono.base.python import members, no_collections

pytestmark = pytest.mark.quick


class Member:
    """Something that can be weakly referenced."""


@contextmanager
def added_to(weak: weakref.WeakSet[Member]) -> Iterator[None]:
    """Another thread adds members, and drops some, all the time; threads take turns as often as they can."""
    over, kept, interval = threading.Event(), [Member() for _ in range(100)], sys.getswitchinterval()
    for member in kept:
        weak.add(member)

    def add() -> None:
        while not over.is_set():
            weak.add(Member())

    thread = threading.Thread(target=add)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_members_are_listed_while_some_are_added() -> None:
    weak = weakref.WeakSet[Member]()
    with added_to(weak):
        for _ in range(300):
            assert len(members(weak)) >= 100


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """Of what `tests/conftest.py` has frozen."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_collections_skip_what_was_made_without() -> None:
    seen: list[str] = []

    def look(phase: str, _info: object) -> None:
        seen.append(phase)

    gc.callbacks.append(look)
    try:
        with no_collections():
            made: list[list[int]] = [[] for _ in range(50_000)]
        more: list[list[int]] = [[] for _ in range(100)]
    finally:
        gc.callbacks.remove(look)
    assert not seen
    assert (len(made), len(more)) == (50_000, 100)


@pytest.mark.usefixtures("nothing_frozen")
def test_what_a_program_has_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        with no_collections():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
