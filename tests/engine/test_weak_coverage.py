"""Each function that orders memory runs in a scene on the model of weak memory, or stands here with a reason."""

import ast
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import unisono
from tests.engine import test_weak_kernels as kernels
from tests.engine import test_weak_lanes as lanes
from tests.engine import test_weak_logs as logs
from tests.engine import test_weak_memory as memory
from tests.support.weak_memory import Weak, allowed

ROOT = Path(unisono.__file__).parent
ATOMICS = {"load_acquire", "store_release", "acquire_fence", "load_half", "store_half", "add_half", "add", "swap"}
ORDERS = {"memory_order": {"fence", "order", "publish", "look", "write_record", "read_record"}, "atomics": ATOMICS}

WITHOUT_SCENE = {
    "engine/kernels/interpret.py run": "the functions that it calls have scenes",
    "engine/logs/rank_logs.py CallLog.writers": "they do what `enter` and `leave` do, which have scenes",
    "engine/memory/board.py Board.begin_run": "a run begins before its ranks hear of it, by a socket",
    "engine/memory/board.py Board.parent_tells_end": "the word stands for itself",
    "engine/memory/board.py Board.set_parent_tells_end": "the word stands for itself",
    "engine/memory/board.py Board.set_stacks": "the word is the number of a file",
    "engine/memory/board.py Board.stacks": "the word is the number of a file",
    "hosts/far.py Far._take_in": "Linux writes the word, and what is read behind it",
}


def ordering() -> Iterator[str]:
    """The functions that call something that orders memory, by file and name."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text())
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        names = {
            alias.asname or alias.name
            for node in imports
            for alias in node.names
            if alias.name in ORDERS.get(str(node.module).rpartition(".")[2], ())
        }
        if path.parts[-2] == "kernels":
            names |= {"publish_and_wake"}
        yield from (f"{path.relative_to(ROOT)} {name}" for name in _callers(tree, names, ""))


def _callers(node: ast.AST, names: set[str], within: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _callers(child, names, f"{within}{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            calls = [one.func for one in ast.walk(child) if isinstance(one, ast.Call)]
            if any(isinstance(one, ast.Name) and one.id in names for one in calls):
                yield f"{within}{child.name}"


def run_by(results: Iterable[Any]) -> set[CodeType]:
    """The functions that run until so many results of a scene are there that each branch has been taken."""
    seen: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    sys.setprofile(profile)
    try:
        list(islice(results, 25))
    finally:
        sys.setprofile(None)
    return seen


def test_each_order_has_a_scene(weak: Weak) -> None:
    seen: set[CodeType] = set()
    for scene in (*memory.SCENES.values(), *logs.SCENES.values(), logs.by_kernel({})):
        seen |= run_by(allowed(weak, scene))
    for name in kernels.KERNEL_SCENES:
        seen |= run_by(allowed(weak, kernels.kernel_scene(name, {}, {})))
    for scene in memory.COPIED.values():
        seen |= run_by(memory.copies_what_comes_later(weak, scene, ""))
    for name in kernels.COPIED:
        seen |= run_by(kernels.copies_what_comes_later(name, {}))
    for moment in range(3):
        seen |= run_by(kernels.sleeps_on(weak, moment, "all"))
        for what in ("share", "end"):
            seen |= run_by(lanes.helper_sleeps_on(moment, what, {}, {}))
    seen |= run_by(lanes.goes_wrong({}, {})) | run_by(memory.both_are_blind(weak))
    known = {
        f"{Path(code.co_filename).relative_to(ROOT)} {code.co_qualname}"
        for code in seen
        if Path(code.co_filename).is_relative_to(ROOT)
    }
    assert len({*ordering()} & known) > 50
    assert sorted({*ordering()} - known) == sorted(WITHOUT_SCENE)
