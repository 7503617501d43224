"""The private names of torch that the sources use: all are in one list, and in the torch that is installed."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest
import torch

import unisono
from unisono.integrations.torch.private_names import LATER_NAMES, PRIVATE_NAMES, is_there

FOREIGN = re.compile(
    r"_(exit|asdict|getframe|current_frames|registry|shutdown|run_exitfuncs|getvalue|reprcompare|ZSt\w+|internal_kv_\w+)$"
)
"""Private names of others: Python's, pytest's, Numba's, C++'s and Ray's."""
OWN = re.compile(r"def (_\w+)|self\.(_\w+)|^\s*(_\w+)\b.*=", re.MULTILINE)


def private_words() -> dict[str, str]:
    """Names with an underscore that the sources take from what is not theirs, and a file where they do."""
    texts = {path.name: path.read_text() for path in Path(unisono.__file__).parent.rglob("*.py")}
    own = {name for text in texts.values() for found in OWN.findall(text) for name in found}
    used = {}
    for name, text in texts.items():
        for node in ast.walk(ast.parse(text)) if "torch" in text else ():
            if isinstance(node, ast.Attribute):
                used[node.attr] = name
            elif isinstance(node, ast.ImportFrom) and f"{node.module}".startswith("torch"):
                used |= dict.fromkeys([*f"{node.module}".split("."), *(alias.name for alias in node.names)], name)
    return {
        word: where
        for word, where in used.items()
        if re.match(r"_[a-zA-Z]", word) and word not in own and not FOREIGN.match(word)
    }


def test_the_list_has_all_that_the_sources_use() -> None:
    listed = {part for name in (*PRIVATE_NAMES, *LATER_NAMES) for part in re.split(r"[.:]", name)}
    assert {name: where for name, where in private_words().items() if name not in listed} == {}


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_this_torch_has_them(name: str) -> None:
    for module in ("torch._dynamo", "torch.distributed.fsdp._fully_shard"):
        importlib.import_module(module)
    assert is_there(name), f"seen in torch {PRIVATE_NAMES[name]}, not in {torch.__version__}"


def test_what_is_not_there_is_not_found() -> None:
    for name in PRIVATE_NAMES:
        assert not is_there(f"{name}_moved")
