"""A smaller program that goes wrong, too: fewer steps and settings."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.programs import Program


def shrink(program: Program, fails: Callable[[Program], bool], until_s: float) -> Program:
    """The smallest that is found until then (time.monotonic). fails: runs a program in a new world."""
    smaller = True
    while smaller and time.monotonic() < until_s:
        smaller = False
        for candidate in _smaller(program):
            if time.monotonic() > until_s:
                break
            if fails(candidate):
                program, smaller = candidate, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """Programs that are a little smaller, those first that are much smaller."""
    steps = program.steps
    width = len(steps) // 2
    while width:
        for at in range(0, len(steps), width):
            yield replace(program, steps=steps[:at] + steps[at + width :])
        width //= 2
    for k in range(len(program.settings)):
        yield replace(program, settings=program.settings[:k] + program.settings[k + 1 :])
