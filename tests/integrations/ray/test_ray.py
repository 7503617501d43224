"""Ray's actors as ranks, and Ray Train, with the real Ray, which is an extra; without it these tests are skipped."""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.markdown import ROOT, blocks
from tests.support.programs import run_python

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 400

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'unisono[integrations]'"),
    pytest.mark.timeout(LIMIT_S + 20),
    pytest.mark.long,
    pytest.mark.cold,
]


def run(program: Path, *words: object, **settings: str) -> Any:
    """What a program prints at last, as JSON."""
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",  # else Ray leaves a token in the home directory
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        **settings,
    }
    done = run_python(program, *words, timeout=LIMIT_S, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_recipe_for_actors(tmp_path: Path) -> None:
    """The program of docs/torch.md."""
    (recipe,) = (block for block in blocks(ROOT / "docs" / "torch.md") if "import ray" in block.text)
    script = tmp_path / "recipe.py"
    script.write_text(recipe.text)
    assert run(script) == json.loads(recipe.output or "")


@pytest.mark.parametrize(
    ("words", "settings", "group"),
    [
        (["unisono"], {}, ["unisono", "UnisonoProcessGroup"]),
        ([], {"UNISONO_AS": "gloo"}, ["gloo", "NamedGloo"]),
        ([], {}, ["gloo", "ProcessGroup"]),
    ],
    ids=["by its name", "by Gloo's", "Gloo itself"],
)
def test_train(words: list[str], settings: dict[str, str], group: list[str], tmp_path: Path) -> None:
    """A model of Ray Train's, data parallel on two workers: all have the weights of the same steps in one process."""
    pytest.importorskip("pyarrow", reason="Ray Train is not installed: pip install 'ray[train]'")
    found = run(PROGRAMS / "train.py", tmp_path, *words, **settings)
    assert found["workers"] == [[*group, found["expected"]]] * 2
