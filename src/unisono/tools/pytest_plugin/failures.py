"""What a test says that has failed on its ranks."""

from __future__ import annotations

import re
from traceback import format_exception_only
from unittest import SkipTest

import pytest

from ...base.errors import RankFailed, WaitTimeout
from ...base.units import ranks_text
from .rank_body import wait_for_the_others

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
