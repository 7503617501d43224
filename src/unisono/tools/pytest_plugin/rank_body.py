"""The body of a test on a rank: what is around it there."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from inspect import iscoroutine, unwrap
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import SkipTest, TestCase

import pytest
from _pytest.assertion import pytest_assertrepr_compare, util

import unisono

from ...base.records import RAISED_AT_NS
from ...ranks.rendezvous.identity import HOST_ID


@dataclass(frozen=True)
class Surroundings:
    """What a rank has to prepare for a body.

    module: the name of the test's module.
    environ, folder: the environment and folder of pytest's process, which fixtures may have changed.
    patches: the arguments that are a MonkeyPatch.
    backend, meeting: of the default group of torch.distributed, if the test wants one, and where its ranks meet.
    verbosity: how much asserts explain.
    """

    module: str
    environ: Mapping[str, str]
    folder: str
    patches: tuple[str, ...]
    backend: str | None
    meeting: str
    verbosity: int


def run_body(around: Surroundings, body: Callable[..., object], given: dict[str, Any]) -> None:
    """Call the function that pytest has collected, with copies of its arguments; or run a method of a TestCase."""
    with ExitStack() as stack:
        stack.callback(_save_coverage)
        os.chdir(around.folder)
        stack.enter_context(_environment(around.environ))
        stack.enter_context(_module(around.module, body))
        for name in around.patches:
            given[name] = stack.enter_context(pytest.MonkeyPatch.context())
        if around.backend:
            stack.enter_context(_default_group(around.backend, around.meeting))
        _explain_asserts(around.verbosity)
        try:
            result = body(**given)
            if isinstance(result, TestCase):
                result.debug()  # with its setUp and tearDown
            elif iscoroutine(result):
                asyncio.run(result)
        except pytest.skip.Exception as skipped:  # which names a module that does not have it, so it cannot be sent
            raise SkipTest(skipped.msg or "").with_traceback(skipped.__traceback__) from None
        if around.backend:
            wait_for_the_others()


def _explain_asserts(verbosity: int) -> None:
    """Let asserts say how two values differ, as they do in pytest's process, which has a `pytest.Config` for it."""
    terminal = SimpleNamespace(_highlight=lambda text, lexer="": text)  # noqa: ARG005
    config: Any = SimpleNamespace(
        get_verbosity=lambda _: verbosity,
        getini={"assertion_text_diff_style": "ndiff"}.get,
        pluginmanager=SimpleNamespace(has_plugin=lambda _: True),
        get_terminal_writer=lambda: terminal,
    )

    def compare(op: str, left: object, right: object) -> str | None:
        lines = pytest_assertrepr_compare(config, op, left, right) or ()
        return "\n~".join(line.replace("\n", "\\n") for line in lines).replace("%", "%%") or None

    util._config, util._reprcompare = config, compare  # noqa: SLF001


def _save_coverage() -> None:
    """Write what coverage.py has measured here, if it measures: it would do so at the end, but ranks may be killed."""
    measures = "coverage" in sys.modules and sys.modules["coverage"].Coverage.current()
    if measures:
        measures.save()


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    own = {name: value for name, value in before.items() if name == HOST_ID}
    _set_environment({**wanted, **own})
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(wanted: Mapping[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in wanted.items() if os.environ.get(name) != value})


@contextmanager
def _module(name: str, body: Callable[..., object]) -> Iterator[None]:
    """Let the test's module be what has come with the body, for what is pickled by its name here."""
    before, module = sys.modules.get(name), ModuleType(name)
    vars(module).update(getattr(unwrap(getattr(body, "__func__", body)), "__globals__", {}))
    sys.modules[name] = module
    try:
        yield
    finally:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before


@contextmanager
def _default_group(backend: str, meeting: str) -> Iterator[None]:
    from torch import distributed

    try:
        distributed.init_process_group(
            backend, f"file://{meeting}", rank=unisono.get_rank(), world_size=unisono.get_world_size()
        )
        yield
    except BaseException as error:
        with suppress(AttributeError):
            setattr(error, RAISED_AT_NS, time.monotonic_ns())
        raise
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def wait_for_the_others() -> None:
    """Keep the connections open until no rank needs them any more."""
    if unisono.is_initialized():
        with suppress(unisono.PeerError):  # a rank that has failed says so itself
            unisono.barrier()
