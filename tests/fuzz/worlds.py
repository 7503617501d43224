"""Programs in live worlds: a world is kept for the programs that it can run, and replaced when one goes wrong."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from typing import Any

import unisono
from tests.fuzz.draw import Session
from tests.fuzz.programs import Program
from tests.fuzz.ranks import play
from unisono.base.config import Config
from unisono.base.link import Link

LIMIT_S = 60.0
PROGRAMS = 25  # in one world
PARTS = ("steps", "settings")  # of a program: a smaller one has less of these


class Worlds(ExitStack):
    """One world at a time. past: the programs that it has run."""

    def __init__(self) -> None:
        super().__init__()
        self.past: list[Program] = []
        self._world: unisono.World | None = None
        self._meeting = ""

    def run(self, program: Program) -> list[str]:
        """What went wrong, one text per rank and step; nothing if all is right. After it the world is a new one."""
        if self._world is None or replace(program, steps=()) != replace(self.past[-1], steps=()):
            self.close()
            self.past = []
            settings: Any = {name: Link.parse(f"{s}") if name == "link" else s for name, s in program.settings}
            self._meeting = f"{self.enter_context(tempfile.TemporaryDirectory())}/meeting"
            world = unisono.world(hosts=program.hosts, timeout_s=LIMIT_S, config=Config(**settings))
            self._world = self.enter_context(world)
        self.past.append(program)
        try:
            results = self._world.run(play, program, self._meeting)
            wrong = [f"rank {rank}: {text}" for rank, texts in enumerate(results) for text in texts]
        except (unisono.UnisonoError, OSError) as error:
            wrong = [f"{type(error).__name__}: {error}"]
        if wrong:
            self._world = None
        return wrong


def watch(program: Program) -> list[str]:
    with Worlds() as worlds:
        return worlds.run(program)


def draw_and_run(seed: str) -> Iterator[tuple[list[Program], list[str]]]:
    """Programs without end, and what is wrong: each program alone, and all that its world has run as one."""
    for number in count():
        session = Session(f"{seed} {number}")
        with Worlds() as worlds:
            for _ in range(PROGRAMS):
                wrong = worlds.run(program := session.program())
                together = replace(program, steps=tuple(step for one in worlds.past for step in one.steps))
                yield [program, together], wrong
