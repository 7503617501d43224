"""What the peers of a rank are told when its program ends."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from unisono.base.records import DepartureKind
from unisono.ranks.group.world_group import leave_at_exit


class World:
    """A world of one group; told: what its peers hear."""

    rank, closed = 1, False

    def __init__(self) -> None:
        self.told: list[tuple[DepartureKind, str]] = []
        self.all_of_it = [self]

    def tell_departure(self, how: DepartureKind, words: str) -> None:
        self.told.append((how, words))

    def give_up(self, error: BaseException) -> None:
        del error

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("mine"), "raised KeyError: 'mine'"),
        (ValueError("two\n  lines"), "raised ValueError: two lines"),
        (KeyboardInterrupt(), "raised KeyboardInterrupt"),
    ],
)
def test_the_exception_that_ends_a_program_is_told(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, words: str
) -> None:
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    world: Any = World()
    leave_at_exit(world)
    assert world.told == [(DepartureKind.RAISED, words)]
    assert world.closed
