"""Weak sets that grow while they are listed, values made once by several threads, and a collector that pauses."""

import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from unisono.base.python import make_once, members, no_collections

pytestmark = pytest.mark.quick


def test_members_are_listed_while_some_are_added() -> None:
    kept, late = [threading.Event() for _ in range(3)], list[threading.Event]()

    class Growing(weakref.WeakSet[threading.Event]):
        def __iter__(self) -> Iterator[threading.Event]:
            listed = super().__iter__()
            yield next(listed)
            if not late:  # another thread adds one
                late.append(threading.Event())
                self.add(late[0])
            yield from listed

    assert {*members(Growing(kept))} == {*kept, *late}


@pytest.mark.parametrize("frozen", [False, True], ids=["nothing frozen", "frozen"])
def test_no_collection_looks_at_what_is_made(frozen: bool) -> None:
    """frozen: the program has frozen its objects, as `tests/conftest.py` has."""
    seen: list[str] = []
    gc.callbacks.append(look := lambda phase, _info: seen.append(phase))
    (gc.freeze if frozen else gc.unfreeze)()
    try:
        with no_collections():
            made: list[list[int]] = [[] for _ in range(50_000)]
        more: list[list[int]] = [[] for _ in range(100)]
        assert (len(made), len(more), gc.isenabled(), gc.get_freeze_count() > 0) == (50_000, 100, True, frozen)
    finally:
        gc.callbacks.remove(look)
        gc.freeze()
    assert frozen or not seen


def test_one_thread_makes_what_all_get() -> None:
    made: list[int] = []
    begin = threading.Barrier(6)

    @make_once
    def make(number: int) -> object:
        made.append(number)
        time.sleep(0.001)  # the others come meanwhile
        return object()

    def ask(number: int) -> object:
        begin.wait(30)
        return make(number)

    with ThreadPoolExecutor(6) as pool:
        things = [{*pool.map(ask, [number] * 6)} for number in range(20)]
    assert [len(same) for same in things] == [1] * 20
    assert len(set.union(*things)) == 20
    assert made == list(range(20))


def test_failed_value_is_made_again() -> None:
    make = make_once(Mock(side_effect=[ValueError("first"), 7]))
    with pytest.raises(ValueError, match="first"):
        make()
    assert make() == make() == 7


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
