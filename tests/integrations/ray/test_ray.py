"""Groups of Ray's actors, and Ray Train, with the real Ray, which is an extra; without it these tests are skipped.

Ray starts a small cluster of its own for each program.
"""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import run_python

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 400

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'unisono[integrations]'"),
    pytest.mark.timeout(LIMIT_S + 20),
    pytest.mark.long,
    pytest.mark.cold,
]


def run(program: str, *words: object, **settings: str) -> Any:
    """What a program has found."""
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",  # else Ray leaves a token in the home directory
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        **settings,
    }
    done = run_python(PROGRAMS / program, *words, timeout=LIMIT_S, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("hosts", "shape"), [(["a", "a", "a"], "3"), (["a", "b", "a"], "2+1 (0 2 | 1)")], ids=["one host", "two hosts"]
)
def test_every_call_on_actors(hosts: list[str], shape: str) -> None:
    found = run("actors.py", *hosts)
    assert found["hosts"] == found["hosts again"] == [shape] * 3
    assert found["left"] == [-1] * 3
    assert found["mistakes"] == [[True, True]] * 3
    assert found["declared"] == [[111.0] * 3] * 3
    for rank, calls in enumerate(found["calls"]):
        assert calls == {
            "allreduce SUM": [6.0, 9.0],
            "allreduce PRODUCT": [6.0, 24.0],
            "allreduce MIN": [1.0, 2.0],
            "allreduce MAX": [3.0, 4.0],
            "allreduce of an array": [111.0] * 3,
            "reduce": [111.0 if rank == 1 else 10.0**rank] * 2,
            "broadcast": [100.0] * 2,
            "allgather": [0.0, 0.0, 1.0, -1.0, 2.0, -2.0],
            "reducescatter": [111.0 * (rank + 1)] * 2,
            "send and recv": [7.0 if rank == 2 else 7.0 + rank],
        }


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
    found = run("train.py", tmp_path, *words, **settings)
    assert found["workers"] == [[*group, found["expected"]]] * 2
