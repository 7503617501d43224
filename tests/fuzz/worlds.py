"""Programs in live worlds: a world is kept for the programs that it can run, and replaced when one goes wrong."""

import secrets
import tempfile
from types import TracebackType
from typing import Any

import unisono
from tests.fuzz.programs import Program
from tests.fuzz.ranks import play
from unisono.base.config import Config
from unisono.base.link import Link
from unisono.schedule import Hosts


class Worlds:
    """One world at a time. past: the programs that it has run. limit_s: how long a program may take."""

    def __init__(self, limit_s: float = 60.0) -> None:
        self.limit_s, self._key = limit_s, tuple[object, ...]()
        self._world: unisono.World | None = None
        self._folder: Any = tempfile.TemporaryDirectory(prefix="unisono-fuzz-")
        self._meeting = ""
        self.past: list[Program] = []

    def run(self, program: Program) -> list[str]:
        """What went wrong, one text per rank and step; nothing if all is right. After it the world is a new one."""
        if self._world is None or self._key != program.world:
            self.renew()
            self._key, self._meeting = program.world, f"{self._folder.name}/{secrets.token_hex(4)}"
            self._world = _world(program, self.limit_s)
        self.past.append(program)
        try:
            results = self._world.run(play, program, self._meeting)
            wrong = [f"rank {rank}: {text}" for rank, texts in enumerate(results) for text in texts]
        except (unisono.UnisonoError, OSError) as error:
            wrong = [f"{type(error).__name__}: {error}"]
        if wrong:
            self._drop()
        return wrong

    def renew(self) -> None:
        """Let the next program run in a new world."""
        self._drop()
        self.past = []

    def _drop(self) -> None:
        world, self._world = self._world, None
        if world is not None:
            world.close()

    def __enter__(self) -> "Worlds":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._drop()
        self._folder.cleanup()


def _world(program: Program, limit_s: float) -> unisono.World:
    hosts = Hosts.parse(program.hosts)
    settings: dict[str, Any] = dict(program.settings)
    if "link" in settings:
        settings["link"] = Link.parse(settings["link"])
    return unisono.world(
        hosts.ranks, hosts=hosts if hosts.spans else None, timeout_s=limit_s, config=Config(**settings)
    )


def check(program: Program) -> None:
    """Run a program in a world of its own, and print what went wrong."""
    with Worlds() as worlds:
        for text in worlds.run(program) or ["all is right"]:
            print(text)  # noqa: T201
