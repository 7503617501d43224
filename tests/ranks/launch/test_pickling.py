"""What can be imported travels by name, everything else by value."""

import functools
import importlib.util
import json
import math
import subprocess
import sys

import cloudpickle
import pytest
import torch

from unisono.ranks.launch.pickling import pack, unpack


def top_level(x):
    return x + 1


@pytest.fixture
def stray(tmp_path):
    """A module that is loaded, but on no path."""
    file = tmp_path / "stray.py"
    file.write_text("BASE = 40\ndef helper(x):\n    return BASE + x\nclass Thing:\n    worth = 7\n")
    spec = importlib.util.spec_from_file_location("stray", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["stray"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["stray"]


def elsewhere(data: bytes) -> str:
    """repr of the unpacked value's call, in a process that has nothing but the packages."""
    code = "import pickle, sys; print(repr(pickle.load(sys.stdin.buffer)()))"
    done = subprocess.run(
        [sys.executable, "-c", code], input=data, capture_output=True, timeout=60, check=True, cwd="/"
    )
    return done.stdout.decode().strip()


def test_importable_functions_travel_by_name():
    assert unpack(pack(math.sqrt)) is math.sqrt
    assert unpack(pack(json.dumps)) is json.dumps
    assert unpack(pack(top_level)) is top_level


def test_a_module_on_no_path_travels_by_value_even_behind_other_objects(stray):
    assert elsewhere(pack(functools.partial(stray.helper, 2))) == "42"
    assert elsewhere(pack(lambda: stray.Thing().worth)) == "7"


def test_packing_leaves_no_trace_in_cloudpickle(stray):
    before = set(cloudpickle.list_registry_pickle_by_value())
    pack(stray.helper)
    with pytest.raises(TypeError):
        pack((stray.helper, sys._getframe()))
    assert set(cloudpickle.list_registry_pickle_by_value()) == before


def test_tensors_travel_by_value():
    source = torch.arange(7.0)
    copy = unpack(pack({"t": source, "half": source.to(torch.bfloat16)}))
    source.zero_()
    assert copy["t"].tolist() == list(range(7))
    assert copy["half"].dtype is torch.bfloat16
    assert not copy["t"].is_shared()
