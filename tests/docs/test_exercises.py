"""The exercises: the solutions are right, and each usual mistake is named."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from examples.exercises import answers
from examples.exercises.checking import EXERCISES, HINTS, check, check_here
from examples.exercises.net import Mistake
from examples.exercises.solutions import answers as solutions

from tests.support.markdown import ROOT

LINEAR = """\
    if net.rank > 0:
        net.recv(got := x.clone(), net.rank - 1)
        x += got
    if net.rank + 1 < net.ranks:
        net.send(x, net.rank + 1)
"""
WRONG: dict[str, list[tuple[str, str, str]]] = {
    "naive_all_reduce": [
        ("recv(got, peer)\n            x += got", "recv(x, peer)", "copied instead of added"),
        ("range(1, net.ranks)", "range(net.ranks)", "a message to itself"),
        ("net.send(x, peer)", "net.send(x, peer) if peer > 1 else ()", "waits for a rank that has ended"),
        ("net.send(x, 0)\n        net.recv(x, 0)", "net.recv(x, 0)\n        net.send(x, 0)", "all receive first"),
        ("recv(x, 0)", "recv(got := torch.empty_like(x), 0)\n        x += got", "added instead of copied"),
        ("recv(x, 0)", "recv(x[1:], 0)", "another size"),
    ],
    "ring_reduce_scatter": [
        ("isend", "send", "all send first"),
        ("        sending.wait()\n", "", "nobody waits for it"),
        ("got = torch.empty_like(mine)", "got = mine", "added twice"),
        ("recv(got, (r - 1) % p)", "recv(got, (r + 1) % p)", "wrong neighbour"),
        ("range(1, p)", "range(1, p - 1)", "too few rounds"),
        ("range(1, p)", "range(1, p + 1)", "too many rounds"),
        ("x.tensor_split(p)", "x.split(len(x) // p)", "sizes that do not divide"),
        ("        net.recv(got", "        x.zero_()\n        net.recv(got", "changed while it was sent"),
        ("range(1, p)", "range(0 if p == 1 else 1, p)", "one rank alone"),
    ],
    "ring_all_gather": [
        ("isend(chunks[(r - step) % p]", "isend(chunks[r]", "off by one chunk"),
        ("isend(chunks[(r - step) % p]", "isend(chunks[(r - step + 1) % p]", "never written"),
    ],
    "ring_all_reduce": [("ring_reduce_scatter(net, x)\n    ring_all_gather", "tree_all_reduce", "too many bytes")],
    "tree_all_reduce": [
        ("            break\n", "", "no such rank"),
        ("            x += got\n", "", "an old value"),
    ],
    "pipeline_broadcast": [("tensor_split(8)", "tensor_split(1)", "too few pieces")],
    "bruck_all_gather": [("many = min(have, p - have)", "many = have", "powers of two only")],
    "halving_doubling_all_reduce": [("mine += got", "mine.copy_(got)", "copied instead of added")],
    "scatter_all_gather_broadcast": [("if net.rank < middle", "if net.rank <= middle", "a circle of waits")],
    "pairwise_all_to_all": [("new[(r - k) % p]", "new[(r + k) % p]", "another chunk")],
    "hillis_steele_scan": [("    k = 1\n", f"    k = 1\n{LINEAR}", "a rank too many")],
    "dissemination_barrier": [
        ("recv(torch.empty_like(x), (net.rank - k) % net.ranks)\n        sending.wait()", "rank", "nobody receives it"),
        ("(net.rank - k) % net.ranks", "None", "an exception"),
    ],
}  # fmt: skip
"""By exercise: what is replaced in its solution, by what, and which mistake this is. Each is made once."""


@pytest.mark.parametrize("name", EXERCISES)
def test_solution_is_right(name: str) -> None:
    check(name, getattr(solutions, name))


@pytest.mark.parametrize("ranks", [3, 4])
def test_solutions_run_on_ranks(ranks: int, worlds: Callable[[int], Any]) -> None:
    def work() -> None:
        for name in EXERCISES:
            if ranks == 4 or name != "halving_doubling_all_reduce":
                check_here(name, getattr(solutions, name))

    worlds(ranks).run(work)


@pytest.mark.parametrize("name", EXERCISES)
def test_mistakes_are_named(name: str) -> None:
    with pytest.raises(Mistake, match="not written yet"):
        check(name, getattr(answers, name))
    source = inspect.getsource(getattr(solutions, name))
    for old, new, mistake in WRONG[name]:
        assert old in source
        names: dict[str, Any] = dict(vars(solutions))
        text = f"from __future__ import annotations\n{source.replace(old, new, 1)}"
        exec(compile(text, "answers.py", "exec"), names)  # noqa: S102  a solution of ours
        with pytest.raises(Mistake) as caught:
            check(name, names[name])
        assert caught.value.name == mistake, f"{old!r} as {new!r}: {caught.value}"


def test_every_mistake_is_tried() -> None:
    tried = [mistake for wrong in WRONG.values() for _, _, mistake in wrong]
    assert {*tried, "not written yet"} == HINTS.keys()


def test_page_shows_what_is_printed() -> None:
    page = (ROOT / "docs" / "guides" / "exercises.md").read_text()
    _, function, printed = re.findall(r"^```\w*\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    before, head, after = inspect.getsource(answers).partition("def ring_all_gather")
    body = function.partition("\n")[2]
    written = before + head + after.replace("    raise NotImplementedError\n", body, 1)
    names: dict[str, Any] = {}
    exec(compile(written, "answers.py", "exec"), names)  # noqa: S102  the page's
    with pytest.raises(Mistake) as caught:
        check("ring_all_gather", names["ring_all_gather"])
    assert str(caught.value).split() == printed.split()
