"""The worlds of a session of pytest, and how a test runs on one of them."""

from __future__ import annotations

import os
import re
import tempfile
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import unwrap
from traceback import format_exception_only
from types import ModuleType
from typing import Any
from unittest import SkipTest
from uuid import uuid4

import cloudpickle
import pytest

import unisono

from ...base.errors import ArgumentError, RankFailed, WaitTimeout
from ...base.units import ranks_text
from ...ranks.launch.launch_messages import pack
from .rank_body import Surroundings, run_body, wait_for_the_others

Shape = int | str
"""A number of ranks, or a shape of hosts, such as "2x2"."""


_KEY = pytest.StashKey[dict[Shape, unisono.World]]()


def world_of(config: pytest.Config, shape: Shape, timeout_s: float | None) -> unisono.World:
    """The session's world of this shape; a run on it may take so long from now on. Its ranks stay from test to test."""
    made = config.stash.setdefault(_KEY, {})
    if shape not in made:
        hosts = {"hosts": shape} if isinstance(shape, str) else {"ranks": shape}
        made[shape] = unisono.world(**hosts, prefix=True)
    made[shape].timeout_s = timeout_s
    return made[shape]


def close_worlds(config: pytest.Config) -> None:
    """End the ranks of all worlds of the session."""
    made = config.stash.get(_KEY, {})
    while made:
        made.popitem()[1].close()


def shapes(mark: pytest.Mark) -> list[Shape]:
    """The cases of a test with this mark. Fails if the mark is wrong."""
    numbers, options = mark.args, {"hosts": (), "backend": None, "timeout_s": None, **mark.kwargs}
    hosts = [options["hosts"]] if isinstance(options["hosts"], str) else options["hosts"]
    right = (
        len(options) == 3
        and isinstance(hosts, list | tuple)
        and (numbers or hosts)
        and all(isinstance(number, int) and number > 0 for number in numbers)
        and isinstance(options["backend"], str | None)
        and isinstance(options["timeout_s"], float | int | None)
    )
    if not right:
        words = ", ".join([*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())])
        pytest.fail(
            f'ranks({words}): give numbers of ranks, as in ranks(2, 4), or hosts="2x2", or both; '
            "and, if you like, backend= and timeout_s=",
            pytrace=False,
        )
    return [*numbers, *hosts]


def run_test(item: pytest.Function) -> None:
    """Run a test on the ranks of its world, in place of `item.runtest`."""
    mark = item.get_closest_marker("ranks")
    assert mark is not None  # noqa: S101  it is why this runs
    shape: Any = item.callspec.params["ranks"] if hasattr(item, "callspec") else _only_shape(mark)
    timeout_s = mark.kwargs.get("timeout_s", item.config.getoption("ranks_timeout")) or None
    body, given, patches = _parts(item)
    backend, meeting = mark.kwargs.get("backend"), f"{tempfile.gettempdir()}/ranks-{uuid4().hex}"
    around = Surroundings(
        item.module.__name__, dict(os.environ), os.getcwd(), patches, backend, meeting,
        item.config.get_verbosity(pytest.Config.VERBOSITY_ASSERTIONS),
    )  # fmt: skip
    world = world_of(item.config, shape, timeout_s)
    wrong: BaseException | None = None
    try:
        with _by_value(item.module):
            world.run(run_body, around, body, given)
            _say_if_ended(item, world)
    except (RankFailed, WaitTimeout) as error:
        wrong = failure(item, error, world.size)
        _say_if_ended(item, world)
    except ArgumentError as error:
        with _by_value(item.module):
            wrong = _unsendable(item, given) or error
    finally:
        with suppress(OSError):
            os.unlink(meeting)
    if wrong is not None:
        raise wrong


def _say_if_ended(item: pytest.Function, world: unisono.World) -> None:
    if world.state == "new":
        text = "The ranks of this test have ended with it. The next test gets new ones.\n"
        item.add_report_section("call", "ranks", text)


def _only_shape(mark: pytest.Mark) -> Shape:
    """Of a method of a unittest.TestCase, which has no cases."""
    first, *others = shapes(mark)
    if others:
        pytest.fail("a method of a unittest.TestCase runs on one world: give one number of ranks", pytrace=False)
    return first


def _parts(item: pytest.Function) -> tuple[Callable[..., object], dict[str, Any], tuple[str, ...]]:
    """What the ranks call, with which arguments, and the names of the arguments that ranks make themselves."""
    if item.cls is not None and issubclass(item.cls, unittest.TestCase):
        return item.cls, {"methodName": item.name}, ()
    given = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}  # noqa: SLF001  as pytest's own plug-ins
    patches = tuple(name for name, value in given.items() if isinstance(value, pytest.MonkeyPatch))
    for name in patches:
        del given[name]
    for name, value in given.items():
        if type(value).__module__.startswith("_pytest."):
            raise _no_fixture(name, f"a {type(value).__name__} works in pytest's process only")
    return item.obj, given, patches


@contextmanager
def _by_value(module: ModuleType) -> Iterator[None]:
    """Send the test's module to the ranks as it is here: with the asserts that pytest has rewritten."""
    if module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _unsendable(item: pytest.Function, given: dict[str, Any]) -> BaseException | None:
    """Which fixture, or which name of the module, the ranks cannot get."""
    for name, value in given.items():
        if why := _why_not(value):
            return _no_fixture(name, f"it cannot be pickled ({why})")
    code = getattr(unwrap(item.function), "__code__", None)
    for name in code.co_names if code else ():
        if name in vars(item.module) and (why := _why_not(vars(item.module)[name])):
            text = f"{name} of {item.module.__name__} cannot be sent to the ranks ({why}). Make it in the test."
            return pytest.fail.Exception(text, pytrace=False)
    return None


def _why_not(value: object) -> str:
    try:
        pack(value)
    except Exception as error:  # noqa: BLE001  whatever its own pickling raises
        return str(error) or type(error).__name__
    return ""


def _no_fixture(name: str, why: str) -> BaseException:
    text = (
        f"the fixture {name} cannot be sent to the ranks: {why}. Let it return plain data or tensors, of which the "
        "test makes what it needs; or name it in usefixtures or in a fixture: there it stays in pytest's process."
    )
    return pytest.fail.Exception(text, pytrace=False)


_NO_DEBUGGER = (
    "\n\n--pdb: the debugger opens in pytest's process, after the ranks have ended: it cannot show their frames. The "
    "stacks above can; `unisono.run(test, ranks=1)` or a test on one rank can be debugged line by line."
)

_FAILED_TOO = r"^\(and rank \d+ (?!raised \S*(SkipTest|XFailed)\b)"
"""In the traceback of a rank that skips the test: another rank, which does not."""


def failure(item: pytest.Function, error: RankFailed | WaitTimeout, size: int) -> BaseException:
    """The exception of the test in pytest's process: with the reports of its ranks, without frames of this process."""
    cause = error.__cause__
    if isinstance(error, RankFailed) and not re.search(_FAILED_TOO, error.traceback, re.MULTILINE):
        if isinstance(cause, SkipTest):
            return pytest.skip.Exception(str(cause), _use_item_location=True)
        if isinstance(cause, pytest.xfail.Exception):
            return cause
    for mark in item.iter_markers("xfail"):
        expected = mark.kwargs.get("raises")
        if cause is not None and isinstance(expected, type | tuple) and isinstance(cause, expected):
            cause.add_note(str(error))
            return cause
    text = _failed(error) if isinstance(error, RankFailed) else _late(item, error, size)
    return pytest.fail.Exception(text + _NO_DEBUGGER * bool(item.config.getoption("usepdb", False)), pytrace=False)


def _failed(error: RankFailed) -> str:
    what, who = format_exception_only(error.__cause__)[0].partition("\n")[0], f"rank {error.rank} "
    message = what.partition(": ")[2]
    return f"{message if message.startswith(who) else f'{who}raised {what}'}\n\n{error}"


def _late(item: pytest.Function, error: WaitTimeout, size: int) -> str:
    """First a line for each rank, then the stacks."""
    lines = [f"{item.name} has not ended after {error.waited_s:g} s; see where its ranks were"]
    details, *stacks = re.split(r"(\nrank (\d+) was here:\n)", error.details)
    for head, rank, stack in zip(stacks[::3], stacks[1::3], stacks[2::3], strict=True):
        place = _place(stack, str(item.path))
        lines.append(f"  rank {rank}: {place}")
        if place != _RETURNED:
            details += head + stack
    if others := sorted(set(range(size)) - set(error.missing)):
        lines.append(f"  {ranks_text(others)}: returned")
    move = "\nLook at what a rank waits for, or give the test longer: --ranks-timeout, or timeout_s= in its mark."
    return "\n".join(lines) + details + move


_RETURNED = "it has returned, and waits for the others"


def _place(stack: str, file: str) -> str:
    """The line of the test's file, and what it calls."""
    call = ""
    for path, line, function in re.findall(r'File "(.*)", line (\d+) in (.*)', stack):
        if path == file:
            return f"{path.rpartition('/')[2]}:{line} in {function}" + (f", in a call of {call}" if call else "")
        if function == wait_for_the_others.__name__:
            return _RETURNED
        if not path.endswith("c10d_logger.py"):  # around torch's calls
            call = function
    return "its stack shows no line of the test"
