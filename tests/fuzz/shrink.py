"""A smaller program that goes wrong, too: fewer steps, then plainer ones."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.programs import Barrier, Call, Coalesced, Messages, Program, Step, Threads


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
    for at, step in enumerate(steps):
        for plainer in _plainer(step):
            yield replace(program, steps=(*steps[:at], *plainer, *steps[at + 1 :]))


def _plainer(step: Step) -> Iterator[tuple[Step, ...]]:
    """What a step can be replaced by."""
    if isinstance(step, Threads):
        yield from step.branches
        for at, branch in enumerate(step.branches):
            rest = step.branches[:at], step.branches[at + 1 :]
            if len(step.branches) > 2:
                yield (Threads((*rest[0], *rest[1])),)
            for k in range(len(branch)):
                if len(branch) > 1:
                    yield (Threads((*rest[0], branch[:k] + branch[k + 1 :], *rest[1])),)
                for other in _plainer(branch[k]):
                    yield (Threads((*rest[0], (*branch[:k], *other, *branch[k + 1 :]), *rest[1])),)
        return
    if isinstance(step, Call):
        case = step.case
        plain = {
            "async_op": False,
            "alias": False,
            "shared": False,
            "blocks": "even",
            "layout": "contiguous",
            "root": 0,
        }
        if case.op in ("avg", "min", "max", "product", "premul_sum"):
            plain["op"] = "sum"
        for name, value in plain.items():
            if getattr(case, name) != value:
                yield (replace(step, case=replace(case, **{name: value})),)
        if case.layout not in ("scalar", "empty"):
            yield from ((replace(step, case=replace(case, n=n)),) for n in _fewer(case.n))
    elif isinstance(step, Coalesced):
        for k in range(len(step.parts) if len(step.parts) > 1 else 0):
            yield (replace(step, parts=step.parts[:k] + step.parts[k + 1 :]),)
        for k, (dtype, n) in enumerate(step.parts):
            for fewer in _fewer(n):
                yield (replace(step, parts=(*step.parts[:k], (dtype, fewer), *step.parts[k + 1 :])),)
    elif isinstance(step, Messages):
        yield from ((replace(step, n=n),) for n in _fewer(step.n))
        if step.layout != "contiguous" or step.shared:
            yield (replace(step, layout="contiguous", shared=False),)
    if getattr(step, "async_op", False):
        yield (replace(step, async_op=False),)  # type: ignore[type-var]
    if isinstance(step, Call | Barrier) and step.algorithm is not None:
        yield (replace(step, algorithm=None),)
    if getattr(step, "group", "world") != "world":
        yield (replace(step, group="world"),)  # type: ignore[call-arg]


def _fewer(n: int) -> Iterator[int]:
    yield from (few for few in (1, 2, 7, 64, 1000, n // 8, n // 2) if few < n)
