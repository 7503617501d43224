"""Sentinels over bad networks: some scenes of those that `python -m tests.fuzz.network` draws."""

import random

import pytest

from tests.fuzz.network import NetworkScene, check, draw
from tests.fuzz.network_relay import Weather

pytestmark = pytest.mark.long

STORM = Weather(loss=0.1, twice=0.3, slow_s=0.1, replay=0.3, forge=0.3)


@pytest.mark.parametrize(
    ("hosts", "events"),
    [("2x2", ("tell 0", "pause 1", "kill 3")), ("3x2", ("tell 1", "stop 2")), ("1+2+1", ("kill 2", "cut 0"))],
)
def test_the_worst_weather(hosts: str, events: tuple[str, ...]) -> None:
    check(NetworkScene(hosts, STORM, events))


def test_scenes_drawn_by_lot() -> None:
    rng = random.Random(5)
    for _ in range(4):
        check(draw(rng))


def test_what_does_not_arrive_is_seen() -> None:
    with pytest.raises(AssertionError, match=r"lost \{1\}"):
        check(NetworkScene("1+1", Weather(loss=1.0), ("tell 0",)))
