"""Small things of Python: weak sets, the garbage collector, and frozen values.

Members of a weak set are listed while another thread adds some; the collector leaves new modules alone. Of values: what
their fields are, how they compare, what is refused.
"""

import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pytest

from unisono.base.python import members, no_collections
from unisono.base.value import Value

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


def test_members_are_listed_while_another_thread_adds_some() -> None:
    weak = weakref.WeakSet[Member]()
    with added_to(weak):
        for _ in range(300):
            assert len(members(weak)) >= 100


def test_only_what_is_still_there_is_listed() -> None:
    first, second = Member(), Member()
    weak = weakref.WeakSet([first, second])
    assert {*members(weak)} == {first, second}
    del second
    gc.collect()
    assert members(weak) == [first]


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """Of what `tests/conftest.py` has frozen."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_no_collection_looks_at_what_was_made_without_collections() -> None:
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


class Place(Value):
    host: int
    seat: int = 0

    @cached_property
    def text(self) -> str:
        return f"{self.host}.{self.seat}"


class Near(Place, kw_only=True):
    hops: int


def test_fields_are_given_in_order_or_by_name_or_have_defaults() -> None:
    assert Place(1) == Place(1, 0) == Place(seat=0, host=1) == Place(2).replace(host=1)
    assert Near(host=1, hops=3).replace(seat=2) == Near(hops=3, host=1, seat=2)
    assert repr(Near(host=1, hops=3)) == "Near(host=1, seat=0, hops=3)"


def test_it_compares_by_class_and_fields_alone() -> None:
    place = Place(1, 2)
    assert place.text == "1.2"
    assert place == Place(1, 2)
    assert hash(place) == hash(Place(1, 2))
    assert place not in {Place(1, 3), (1, 2), Near(host=1, seat=2, hops=0)}
    assert place.replace(seat=4).text == "1.4"


def test_a_copy_by_pickle_is_equal() -> None:
    place = Near(host=1, hops=2)
    assert pickle.loads(pickle.dumps(place)) == place  # noqa: S301


@pytest.mark.parametrize(
    ("values", "named", "said"),
    [
        ((), {}, "host is missing"),
        ((1, 2, 3), {}, "more values than fields"),
        ((1,), {"host": 1}, "given twice"),
        ((1,), {"room": 1}, "has no room"),
    ],
)
def test_what_does_not_fit_is_refused(values: tuple[int, ...], named: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        Place(*values, **named)


def test_a_field_is_fixed() -> None:
    place: Any = Place(1)
    with pytest.raises(AttributeError, match=r"seat of a Place is fixed; `replace\(seat=...\)`"):
        place.seat = 3
    with pytest.raises(AttributeError, match="is fixed"):
        del place.seat
    assert place == Place(1, 0)
