"""The types that users see: type checkers accept the examples as a user's code, and the stub fits what runs."""

import ast
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import unisono
from tests.support.programs import run_python

ROOT = Path(__file__).parents[2]
SOURCE = str(Path(unisono.__file__).parents[1])

PROGRAM = """
from typing import assert_type

import torch
import unisono

def work(scale: float) -> list[float]:
    return [scale]

tensor, later = torch.ones(2), bool(unisono.get_rank())
assert_type(unisono.all_reduce(tensor), None)
assert_type(unisono.all_reduce(tensor, "max", async_op=True), unisono.Work[torch.Tensor])
assert_type(unisono.all_reduce(tensor, async_op=later), unisono.Work[torch.Tensor] | None)
assert_type(unisono.all_reduce(tensor, async_op=True).result(), torch.Tensor)
assert_type(unisono.all_gather(None, tensor), list[torch.Tensor])
assert_type(unisono.all_gather([tensor], tensor), None)
assert_type(unisono.scatter(tensor, [tensor]), None)
assert_type(unisono.all_reduce_coalesced([tensor]), None)
assert_type(unisono.run(work, ranks=2, args=(1.0,)), list[list[float]])
assert_type(unisono.run(work, args=(1.0,), return_exceptions=True), list[list[float] | unisono.RankFailed])
with unisono.world(2) as world:
    assert_type(world.run(work, 1.0), list[list[float]])
if group := unisono.split(color=0):
    unisono.all_reduce(tensor, group=group)
"""

MISTAKES = """
import torch
import unisono

unisono.all_reduce(torch.ones(2), op=3)
unisono.all_reduce(torch.ones(2), async_op=True).wate()
unisono.broadcast(torch.ones(2), src="0")
"""


def check(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MYPYPATH": SOURCE, "PYTHONPATH": SOURCE}
    return run_python("-m", *words, cwd=cwd, env=environment, timeout=390)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    (tmp_path / "none.ini").write_text("[mypy]\n")
    return tmp_path


def mypy(*files: str, cwd: Path) -> list[str]:
    # torch itself has functions without types, such as Tensor.backward.
    options = "--strict", "--allow-untyped-calls", "--python-version", "3.11", "--config-file", str(cwd / "none.ini")
    done = check("mypy", *options, "--cache-dir", str(cwd / "cache"), *files, cwd=cwd)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    ours = [line for line in done.stdout.splitlines() if ": error:" in line]
    return [line for line in ours if not line.startswith((SOURCE, os.path.relpath(SOURCE, cwd)))]


@pytest.mark.long
@pytest.mark.timeout(400)  # mypy reads torch without a cache
def test_mypy_accepts_the_examples_knows_what_calls_return_and_finds_mistakes(program: Path) -> None:
    examples = sorted(str(path) for path in (ROOT / "examples").glob("*.py"))
    assert len(examples) >= 9
    found = mypy(*examples, "program.py", "mistakes.py", cwd=program)
    assert {tuple(line.split(":")[:2]) for line in found} == {("mistakes.py", line) for line in "567"}


@pytest.mark.sampled(one_in=3)
def test_pyright_accepts_the_examples(program: Path) -> None:
    pytest.importorskip("basedpyright")
    settings = {
        "include": [str(ROOT / "examples"), "program.py"], "extraPaths": [SOURCE, str(ROOT / "examples" / "tested")],
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
    }  # fmt: skip
    (program / "pyrightconfig.json").write_text(json.dumps(settings))
    done = check("basedpyright", "--pythonpath", sys.executable, cwd=program)
    assert done.returncode == 0, done.stdout
    assert "0 errors" in done.stdout


STUB = ast.parse((Path(unisono.__file__).parent / "__init__.pyi").read_text())
OVERLOADS = [node for node in STUB.body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("node", OVERLOADS, ids=[f"{node.name}, line {node.lineno}" for node in OVERLOADS])
def test_the_stub_has_the_arguments_of_the_code(node: ast.FunctionDef) -> None:
    code = inspect.signature(getattr(unisono, node.name)).parameters.values()
    stub = [argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]]
    assert stub == [parameter.name for parameter in code]
    optional = node.args.args[len(node.args.args) - len(node.args.defaults) :]
    keywords = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    given = {argument.arg for argument in optional} | {argument.arg for argument, default in keywords if default}
    required = {parameter.name for parameter in code if parameter.default is parameter.empty}
    assert not given & required
    assert {*stub} - given - required <= {"async_op", "return_exceptions"}  # which some results need


def test_the_stub_has_the_names_of_the_code() -> None:
    imported = [alias.name for node in STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert {*unisono.__all__} <= {*imported, *(node.name for node in OVERLOADS), *dir(unisono)}
    exported = next(
        node for node in STUB.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert sorted(ast.literal_eval(exported.value)) == sorted(unisono.__all__)
