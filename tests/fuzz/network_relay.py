"""A relay of datagrams between sentinels that loses, repeats, delays, reorders, replays and forges them.

For kernels that cannot do that to a link (`tc ... netem`). Sentinels know each other by what they sign, not by
addresses.
"""

import heapq
import itertools
import random
import select
import socket
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple


class Weather(NamedTuple):
    """loss, twice, replay, forge: how likely a datagram gets lost, comes twice, comes again much later, or comes with a
    changed bit as well. slow_s: how long it takes at most.
    """

    loss: float = 0.0
    twice: float = 0.0
    slow_s: float = 0.0
    replay: float = 0.0
    forge: float = 0.0


class Relay:
    """Sockets for every pair of hosts, and a thread. cut: hosts of which nothing passes. still_s: for how long nothing
    has passed at most, because the thread had no processor. Leaving it raises what has ended the thread.
    """

    def __init__(self, hosts: int, weather: Weather, seed: int) -> None:
        self._weather, self._rng = weather, random.Random(seed)
        self._sockets = {pair: self._socket() for pair in itertools.permutations(range(hosts), 2)}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._flying: list[tuple[float, int, tuple[int, int], bytes]] = []
        self._order, self._over = itertools.count(), threading.Event()
        self.cut: set[int] = set()
        self.still_s = 0.0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @staticmethod
    def _socket() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        return sock

    def route(self, host: int, addresses: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Where this host shall believe the others to be."""
        self._addresses = dict(enumerate(addresses))
        return [
            addresses[other] if other == host else self._sockets[host, other].getsockname()
            for other in range(len(addresses))
        ]

    def __enter__(self) -> "Relay":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for sock in self._sockets.values():
            sock.close()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._pass_on()
        except BaseException as error:  # noqa: BLE001  else the hosts would seem to be silent
            self._error = error

    def _pass_on(self) -> None:
        pairs = {sock.fileno(): pair for pair, sock in self._sockets.items()}
        began = time.monotonic()
        while not self._over.is_set():
            ready, _, _ = select.select(list(pairs), [], [], 0.002)
            for fd in ready:
                self._take(pairs[fd], self._sockets[pairs[fd]].recv(65_536))
            while self._flying and self._flying[0][0] <= time.monotonic():
                _, _, pair, data = heapq.heappop(self._flying)
                to = self._addresses.get(pair[1])
                if to is not None and not self.cut & set(pair):  # before there are addresses, only strangers send
                    self._sockets[pair].sendto(data, to)
            before, began = began, time.monotonic()
            self.still_s = max(self.still_s, began - before)

    def _take(self, pair: tuple[int, int], data: bytes) -> None:
        weather, rng = self._weather, self._rng
        if rng.random() >= weather.loss:
            self._send(pair, data, 0.0)
        if rng.random() < weather.twice:
            self._send(pair, data, 0.0)
        if rng.random() < weather.replay:
            self._send(pair, data, 0.5 + rng.random())
        if rng.random() < weather.forge:
            at = rng.randrange(len(data))
            self._send(pair, data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :], 0.0)

    def _send(self, pair: tuple[int, int], data: bytes, later_s: float) -> None:
        if pair[1] not in self._addresses:  # from a sentinel of an earlier scene, to a port that has changed hands
            return
        when = time.monotonic() + later_s + self._rng.random() * self._weather.slow_s
        heapq.heappush(self._flying, (when, next(self._order), pair, data))
