"""Sentinels over bad networks: some scenes of those that `make fuzz-faults` draws."""

from __future__ import annotations

import random
import socket
import time
from typing import Any

import pytest

from tests.fuzz import network
from tests.fuzz.network import NetworkScene, check, draw
from tests.fuzz.network_relay import Relay, Weather
from tests.support.waiting import until

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


def test_a_relay_without_a_processor_is_no_silent_host(monkeypatch: pytest.MonkeyPatch) -> None:
    late_s = [2.5]

    class _Late(Relay):
        """Once all hosts have heard each other, it is late, one time only."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._passed = 0

        def _take(self, pair: tuple[int, int], data: bytes) -> None:
            self._passed += 1
            if late_s and self._passed > 40:
                time.sleep(late_s.pop())
            super()._take(pair, data)

    monkeypatch.setattr(network, "Relay", _Late)
    check(NetworkScene("2x2", Weather(), ("tell 0", "pause 0", "pause 1", "tell 1")))
    assert not late_s


def test_what_ends_a_relay_is_told() -> None:
    relay = Relay(2, Weather(), 0).__enter__()
    relay._take = lambda _pair, _data: 1 // 0  # type: ignore[method-assign]
    send_to(relay)
    until(lambda: not relay._thread.is_alive())
    with pytest.raises(ZeroDivisionError):
        relay.__exit__()


def test_what_comes_before_its_hosts_are_known_is_dropped() -> None:
    """From a sentinel of an earlier scene, whose relay had this port."""
    with Relay(2, Weather(), 0) as relay:
        passed = []
        relay._rng.random = lambda: passed.append(1) or 0.5  # type: ignore[method-assign,func-returns-value]
        send_to(relay)
        until(lambda: len(passed) >= 3)
        assert relay._thread.is_alive()


def send_to(relay: Relay) -> None:
    """A datagram from a stranger."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"?", relay._sockets[0, 1].getsockname())


def test_what_does_not_arrive_is_seen() -> None:
    with pytest.raises(AssertionError, match=r"lost \{1: "):
        check(NetworkScene("1+1", Weather(loss=1.0), ("tell 0",)))
