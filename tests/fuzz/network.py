"""Sentinels of several hosts over bad networks drawn by lot: `python -m tests.fuzz.network --seconds 60 --seed 1`.

What ranks tell arrives, what dies is known everywhere, and no host is taken for lost that is there.
"""

import random
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, NamedTuple

import typer

from tests.fuzz.network_relay import Relay, Weather
from tests.support.fake_hosts import WORLD, FakeHosts
from tests.support.waiting import until
from unisono.base.records import Departure, DepartureKind, GivenUp

KILLED = Departure(DepartureKind.DIED, "was killed by signal 9 (SIGKILL)")
PAUSE_S, SETTLE_S = 0.7, 1.0
"""How long a sentinel stops that is not to be missed; for how long it is then looked whether it is."""
STILL_S, TRIES = 0.5, 3
"""Where the relay itself had no processor for so long, hosts may be silent for longer than they may; so many times the
scene is played then.
"""


class NetworkScene(NamedTuple):
    """events: what happens, one after the other. `kill 3`: to a rank; `tell 0`: by the first rank of a host; `pause 0`,
    `stop 0`, `end 0`: to a host's sentinel, for less than a host may be silent, for more, and for good; `cut 0`.
    """

    hosts: str
    weather: Weather
    events: tuple[str, ...]
    seed: int = 0


def draw(rng: random.Random) -> NetworkScene:
    """A scene, at whose end a host may be lost."""
    hosts = rng.choice(["2x2", "3x2", "1+2+1", "4x1"])
    weather = Weather(
        rng.choice([0.0, 0.02, 0.1]), rng.choice([0.0, 0.3]), rng.choice([0.0, 0.01, 0.1]), rng.choice([0.0, 0.2]),
        rng.choice([0.0, 0.3]),
    )  # fmt: skip
    ranks = {"2x2": (1, 3), "3x2": (1, 3, 5), "1+2+1": (2,), "4x1": ()}[hosts]
    number = {"2x2": 2, "3x2": 3, "1+2+1": 3, "4x1": 4}[hosts]
    events = [f"{rng.choice(['tell', 'tell', 'pause'])} {rng.randrange(number)}" for _ in range(rng.randint(1, 4))]
    events += [f"kill {rank}" for rank in ranks if rng.random() < 0.5]
    rng.shuffle(events)
    if number > 2 and rng.random() < 0.6:
        events.append(f"{rng.choice(['stop', 'end', 'cut'])} {rng.randrange(number)}")
    return NetworkScene(hosts, weather, tuple(events), rng.randrange(1 << 30))


def check(scene: NetworkScene) -> None:
    """Play the scene. Raises AssertionError where something is not as it must be."""
    for last in (False,) * (TRIES - 1) + (True,):
        relay = Relay(len(FakeHosts(scene.hosts).hosts.members), scene.weather, scene.seed)
        try:
            _play(scene, relay)
        except AssertionError:
            if last or relay.still_s < STILL_S:
                raise
        else:
            return


def _play(scene: NetworkScene, relay: Relay) -> None:
    with relay, FakeHosts(scene.hosts, route=relay.route) as fake:
        play = _Play(fake, relay)
        play.all_answer()
        for event in scene.events:
            what, _, which = event.partition(" ")
            try:
                getattr(play, what)(int(which))
                play.all_answer()
            except AssertionError as error:
                raise AssertionError(f"{event}: {error}\n{scene}\n{play.facts()}") from error


class _Play:
    def __init__(self, fake: FakeHosts, relay: Relay) -> None:
        self._fake, self._relay, self._living, self._said = fake, relay, set(range(len(fake.far))), 0

    def facts(self) -> str:
        """What the hosts believe."""
        return "\n".join(f"host {k}: lost {self._fake.lost(k)}, {far.cut_off}" for k, far in enumerate(self._fake.far))

    def all_answer(self) -> None:
        """Every host that lives hears from all others what they said before it asked; nobody is lost who is not."""
        lost = set(range(len(self._fake.far))) - self._living
        for host in self._living:
            far = self._fake.far[host]
            ticket = far.ask(WORLD)
            until(lambda far=far, ticket=ticket: far.answered(ticket))
            assert self._fake.lost(host) == lost, self.facts()
            assert far.cut_off is None, self.facts()

    def tell(self, host: int) -> None:
        """What the first rank of a host says arrives, and nothing older after it."""
        self._said += 1
        rank, said = self._fake.hosts.members[host][0], GivenUp(self._said, reason=f"said {self._said}")
        self._fake.arenas[host].board(rank).set_gave_up(said)
        self._fake.far[host].wake(WORLD)
        self._everywhere(lambda other: self._fake.arenas[other].board(rank).gave_up == said)

    def kill(self, rank: int) -> None:
        """A rank's death is known everywhere."""
        self._fake.sleepers[rank].kill()
        self._everywhere(lambda host: self._fake.arenas[host].board(rank).gone == KILLED)

    def pause(self, host: int) -> None:
        """A sentinel that stops for a moment is not missed."""
        signal.pidfd_send_signal(self._fake.pidfds[host], signal.SIGSTOP)
        time.sleep(PAUSE_S)
        signal.pidfd_send_signal(self._fake.pidfds[host], signal.SIGCONT)
        with suppress(AssertionError):
            until(lambda: any(map(self._fake.lost, self._living)), SETTLE_S)

    def stop(self, host: int) -> None:
        """One that stops for long is lost, and hears so."""
        signal.pidfd_send_signal(self._fake.pidfds[host], signal.SIGSTOP)
        self._lose(host)
        signal.pidfd_send_signal(self._fake.pidfds[host], signal.SIGCONT)
        until(lambda: self._fake.far[host].cut_off is not None)

    def end(self, host: int) -> None:
        """One that is killed is lost."""
        self._fake.kill_sentinel(host)
        self._lose(host)
        until(lambda: self._fake.far[host].cut_off is not None)

    def cut(self, host: int) -> None:
        """A host whose link is cut is lost, and finds that it is alone."""
        self._relay.cut.add(host)
        self._lose(host)
        until(lambda: self._fake.far[host].cut_off is not None)

    def _lose(self, host: int) -> None:
        self._living.discard(host)
        ranks = self._fake.hosts.members[host]
        self._everywhere(lambda other: all(self._fake.arenas[other].board(rank).gone for rank in ranks))
        self._everywhere(lambda other: self._fake.lost(other) == {host})

    def _everywhere(self, condition: Callable[[int], bool]) -> None:
        for host in self._living:
            until(lambda host=host: condition(host))


def main(
    seconds: Annotated[float, typer.Option(help="Play scenes for so long.")] = 60.0,
    seed: Annotated[str, typer.Option(help="Of the draw; empty: a new one.")] = "",
) -> None:
    """Play scenes drawn by lot."""
    seed = seed or secrets.token_hex(4)
    typer.echo(f"seed {seed}")
    rng, end, played, failed = random.Random(seed), time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        scene, played = draw(rng), played + 1
        try:
            check(scene)
        except AssertionError as error:
            failed += 1
            typer.echo(f'{error}\npython -c "from tests.fuzz.network import *; check({scene})"')
    typer.echo(f"{played} scenes over bad networks, of which {failed} went wrong")
    raise typer.Exit(failed > 0)


if __name__ == "__main__":
    typer.run(main)
