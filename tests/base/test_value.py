"""Frozen values: what their fields are, how they compare, what is refused."""

from __future__ import annotations

import pickle
from functools import cached_property
from typing import Any

import pytest

from unisono.base.value import Value

pytestmark = pytest.mark.quick


class Place(Value):
    host: int
    seat: int = 0

    @cached_property
    def text(self) -> str:
        return f"{self.host}.{self.seat}"


class Near(Place, kw_only=True):
    hops: int


def test_fields_are_given_in_order_or_by_name_or_have_defaults() -> None:
    assert Place(1) == Place(1, 0) == Place(seat=0, host=1) == Place(2).but(host=1)
    assert Near(host=1, hops=3).but(seat=2) == Near(hops=3, host=1, seat=2)
    assert repr(Near(host=1, hops=3)) == "Near(host=1, seat=0, hops=3)"


def test_it_compares_by_class_and_fields_alone() -> None:
    place = Place(1, 2)
    assert place.text == "1.2"
    assert place == Place(1, 2)
    assert hash(place) == hash(Place(1, 2))
    assert place not in {Place(1, 3), (1, 2), Near(host=1, seat=2, hops=0)}
    assert place.but(seat=4).text == "1.4"


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
    with pytest.raises(AttributeError, match=r"seat of a Place is fixed; `but\(seat=...\)`"):
        place.seat = 3
    with pytest.raises(AttributeError, match="is fixed"):
        del place.seat
    assert place == Place(1, 0)
