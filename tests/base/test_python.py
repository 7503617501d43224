"""Weak sets listed while another thread adds to them, values made once by several, and a collector that pauses."""

import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from unisono.base.python import make_once, members, no_collections

pytestmark = pytest.mark.quick


class Member:
    """Something that can be weakly referenced."""


def test_members_are_listed_while_some_are_added() -> None:
    """Another thread adds members, and drops some, all the time; threads take turns as often as they can."""
    over, kept, interval = threading.Event(), [Member() for _ in range(100)], sys.getswitchinterval()
    weak = weakref.WeakSet[Member](kept)

    def add() -> None:
        while not over.is_set():
            weak.add(Member())

    thread = threading.Thread(target=add)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(300):
            assert len(members(weak)) >= 100
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)


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


def in_threads(function: Callable[[], object]) -> list[object]:
    begin = threading.Barrier(6)

    def work(_: int) -> object:
        begin.wait(30)
        return function()

    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(work, range(6)))


def test_one_thread_makes_what_all_get() -> None:
    made: list[int] = []

    @make_once
    def make(*of: int) -> object:
        made.append(of[0])
        return object()

    for number in range(20):
        assert len({id(thing) for thing in in_threads(lambda number=number: make(number))}) == 1  # type: ignore[misc]
    assert made == list(range(20))
    assert make(3) is not make(4)
    assert make(3) is make(3)


def test_failed_value_is_made_again() -> None:
    errors = [ValueError("first")]

    @make_once
    def make() -> int:
        if errors:
            raise errors.pop()
        return 7

    with pytest.raises(ValueError, match="first"):
        make()
    assert make() == 7


def test_value_made_by_signal_handler_stays() -> None:
    """It runs in the thread that has begun to make the same."""
    depth: list[int] = []

    @make_once
    def make() -> list[int]:
        depth.append(len(depth))
        if len(depth) == 1:
            make()
        return [len(depth)]

    assert make() is make()
    assert depth == [0, 1]


def test_forked_process_makes_its_own_value() -> None:
    begun, end = threading.Event(), threading.Event()

    @make_once
    def make(wait: bool) -> int:
        if wait:
            begun.set()
            end.wait(30)
        return os.getpid()

    thread = threading.Thread(target=make, args=(True,))
    thread.start()
    begun.wait(30)
    child = os.fork()
    if not child:
        os._exit(0 if make(False) == os.getpid() else 1)
    end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
