"""Random programs of fixed seeds, and what draws and runs them. `python -m tests.fuzz` runs others."""

from collections.abc import Iterator

import pytest

from tests.fuzz.draw import HOSTS, SETTINGS, Session
from tests.fuzz.many import TENSORS
from tests.fuzz.messages import FORMS as OBJECT_FORMS
from tests.fuzz.messages import WAYS
from tests.fuzz.programs import (
    Barrier,
    Call,
    Coalesced,
    Late,
    MakeGroup,
    Messages,
    Objects,
    Program,
    Split,
    Threads,
    Wait,
    shown,
    steps_of,
)
from tests.fuzz.worlds import Worlds
from tests.support.matrix import FORMS
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import CORES


@pytest.fixture(scope="module")
def live() -> Iterator[Worlds]:
    with Worlds() as worlds:
        yield worlds


@pytest.mark.sampled
@pytest.mark.parametrize("hosts", ["1", "2", "3", "5", "2x1", "2+1"])
@pytest.mark.parametrize("seed", [1, 2])
def test_programs(live: Worlds, hosts: str, seed: int) -> None:
    session = Session(f"{hosts} {seed}", (hosts,), 1 << 20)
    for _ in range(8):
        program = session.program()
        wrong = live.run(program)
        assert not wrong, "\n".join([*wrong, shown(program)])


def drawn() -> list[Program]:
    sessions = [Session(f"{seed}") for seed in range(300)]
    return [session.program() for session in sessions for _ in range(10)]


def test_programs_reach_all_that_there_is() -> None:
    found = drawn()
    steps = [step for program in found for step in steps_of(program)]
    calls = [step for step in steps if isinstance(step, Call)]
    named = {f"{c.case.form.removesuffix('_single')}.{c.algorithm}" for c in calls}
    named |= {f"barrier.{step.algorithm}" for step in steps if isinstance(step, Barrier)}
    assert {program.hosts for program in found} == set(HOSTS)
    assert {program.api for program in found} == {"unisono", "torch", "gloo"}
    assert {setting for program in found for setting in program.settings} == {
        (name, value) for name, values in SETTINGS.items() for value in values
    }
    assert {call.case.form for call in calls} == set(FORMS)
    assert named >= {*CATALOGUE, *(f"{form}.{core}" for form, cores in CORES.items() for core in cores)}
    assert {step.way for step in steps if isinstance(step, Messages)} == set(WAYS)
    assert {step.form for step in steps if isinstance(step, Coalesced)} == set(TENSORS)
    assert {step.form for step in steps if isinstance(step, Objects)} == set(OBJECT_FORMS)
    kinds = {type(step) for program in found for step in program.steps}
    assert kinds == {Barrier, Call, Coalesced, Late, MakeGroup, Messages, Objects, Split, Threads, Wait}
