"""The docstrings of the main calls name their parameters and errors, and their examples give what they say."""

from __future__ import annotations

import inspect
import textwrap
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import unisono
from unisono.base import errors

CALLS = [
    unisono.all_reduce,
    unisono.broadcast,
    unisono.reduce,
    unisono.all_gather,
    unisono.gather,
    unisono.scatter,
    unisono.reduce_scatter,
    unisono.all_to_all,
    unisono.send,
    unisono.recv,
    unisono.barrier,
]


def name(call: Callable[..., Any]) -> str:
    return call.__name__


@pytest.mark.parametrize("call", CALLS, ids=name)
def test_every_parameter_and_the_errors_are_named(call: Callable[..., Any]) -> None:
    text = " ".join((inspect.getdoc(call) or "").split())
    assert not [parameter for parameter in inspect.signature(call).parameters if f" {parameter}: " not in text]
    raised = text.split("Raises ")[1]
    assert {"PeerGone", "PeerFailed", "WaitTimeout"} <= {error for error in errors.__all__ if error in raised}


@pytest.mark.parametrize("call", CALLS, ids=name)
def test_the_example_gives_what_it_says(call: Callable[..., Any], worlds: Callable[[int], unisono.World]) -> None:
    lines = (inspect.getdoc(call) or "").splitlines()
    example = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ") or not line))
    work, _, run = example.strip().rpartition("\n\n")
    expression, _, said = run.partition("  # ")
    names: dict[str, Any] = {"torch": torch, "time": time, "unisono": unisono}
    exec(work, names)  # noqa: S102  a docstring of ours
    run_there = SimpleNamespace(run=lambda function, ranks: worlds(ranks).run(function))
    assert repr(eval(expression, {"work": names["work"], "unisono": run_there})) == said  # noqa: S307
