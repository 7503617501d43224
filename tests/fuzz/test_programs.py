"""Random programs of fixed seeds, and what draws and runs them. `python -m tests.fuzz` runs others."""

import time
from collections.abc import Iterator
from itertools import islice, permutations

import pytest

from tests.fuzz import programs
from tests.fuzz.draw import HOSTS, SETTINGS, Session
from tests.fuzz.many import TENSORS
from tests.fuzz.messages import FORMS as OBJECT_FORMS
from tests.fuzz.messages import WAYS
from tests.fuzz.programs import (
    Barrier,
    Call,
    Case,
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
from tests.support.matrix_driver import exact_data
from tests.support.matrix_layouts import differs
from tests.support.oracle import combine
from tests.support.reducers_driver import PAIRS
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


def test_exact_values_give_the_same_bits_in_every_order() -> None:
    for dtype, op in PAIRS:
        if op == "avg":
            continue  # its sum is divided at the end
        values = exact_data(dtype, op, 5, 200, 3)
        for order in islice(permutations(values), 0, None, 7):
            parts = combine([combine(order[:2], op), combine(order[2:], op)], op)
            assert not differs(parts, combine(values, op)), (dtype, op)


def test_a_program_prints_as_python() -> None:
    for program in drawn()[::20]:
        assert eval(shown(program), vars(programs)) == program  # noqa: S307  it is the tests' own text


def test_wrong_values_are_found_on_the_ranks_that_have_them(live: Worlds) -> None:
    """A sum in another order than that of the ranks differs in bits, if its values are not exact."""
    wrong = live.run(Program("3", (Call(Case("all_reduce", "float32", "sum", 2520, seed=3), algorithm="ring"),)))
    assert {text[:7] for text in wrong} == {"rank 0:", "rank 1:", "rank 2:"}
    assert all("elements differ, first [" in text for text in wrong)
    assert live.run(Program("3", (Call(Case("all_reduce", "float32", "sum", 2520, seed=3)),))) == []


def test_errors_are_found_with_their_step(live: Worlds) -> None:
    refused = Call(Case("scan", "float32", "sum", 7), algorithm="ring")
    wrong = live.run(Program("2", (Barrier(), refused)))
    assert len(wrong) == 2
    assert all(f"{shown(refused)}: ArgumentError at unisono/" in text for text in wrong)


def test_a_program_that_does_not_end_is_found() -> None:
    with Worlds(limit_s=2.0) as worlds:
        began = time.monotonic()
        wrong = worlds.run(Program("2", (Late(1, 60.0), Barrier())))
        assert time.monotonic() - began < 50.0
    assert wrong[0].startswith("WaitTimeout: ")
