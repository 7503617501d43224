"""What ranks print arrives where the parent prints, what notebooks show, and what travels by name or by value."""

import atexit
import ctypes
import functools
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import unisono

# ruff: noqa: T201  printing is what is tested
from tests.support.programs import run_python
from unisono import RankFailed, get_rank, run, world
from unisono.ranks.launch.launch_messages import pack, unpack


def speak():
    rank = get_rank()
    print(f"rank {rank} speaks: äöü")
    print(f"rank {rank} complains", file=sys.stderr)


def lines(text: str) -> list[str]:
    return sorted(text.splitlines())


@pytest.mark.parametrize("stream", ["capsys", "capfd"], ids=["without a file", "a file"])
def test_into_a_stream(request, stream):
    capture = request.getfixturevalue(stream)
    run(speak, 3)
    seen = capture.readouterr()
    assert lines(seen.out) == [f"rank {rank} speaks: äöü" for rank in range(3)]
    assert lines(seen.err) == [f"rank {rank} complains" for rank in range(3)]


def test_a_world_follows_its_parents_stream(capfd):
    with world(2) as w:
        w.run(print, "to a file")
        with redirect_stdout(io.StringIO()) as buffer:
            w.run(print, "to a buffer")
        assert buffer.getvalue() == "to a buffer\n" * 2
        w.run(print, "to a file")
    assert capfd.readouterr().out == "to a file\n" * 4


def test_output_of_c_code_and_half_lines(capsys):
    def speak_in_c():
        libc = ctypes.CDLL(None)
        libc.printf(b"from C\n")
        libc.fflush(None)
        sys.stdout.write("no end of line")

    run(speak_in_c, 1)
    assert capsys.readouterr().out == "from C\nno end of line"


def test_much_output_does_not_block(capsys):
    def chatter():
        for number in range(3000):
            print(f"{number} " + "x" * 100)

    run(chatter, 2)
    assert len(capsys.readouterr().out) == 2 * sum(len(f"{number} ") + 101 for number in range(3000))


def test_rank_without_output_still_reports():
    assert run(lambda: sys.stdout.close() or os.getpid() > 0, 2) == [True, True]


def test_lines_with_a_prefix(capfd):
    def speak_in_lines():
        rank = get_rank()
        sys.stdout.write(f"first {rank}\n\nhalf")
        sys.stderr.write(f"error {rank}\n")
        atexit.register(print, "bye", file=sys.stderr)

    with world(2, prefix=True) as w:
        w.run(speak_in_lines)
        seen = capfd.readouterr()
    assert lines(seen.out) == sorted(f"[rank {r}] {text}" for r in range(2) for text in (f"first {r}", "", "half"))
    assert lines(seen.err) == ["[rank 0] error 0", "[rank 1] error 1"]
    rest = capfd.readouterr()
    assert (rest.out, lines(rest.err)) == ("", ["[rank 0] bye", "[rank 1] bye"])


def test_ipython_shows_the_caller_s_frames_only():
    with pytest.raises(RankFailed) as caught:
        run(lambda: 1 // 0, 2)
    text = "\n".join(caught.value._render_traceback_())
    assert "run(lambda: 1 // 0, 2)" in text
    assert str(Path(unisono.__file__).parent) not in text
    assert re.search(r"^RankFailed: rank [01] failed:", text, re.MULTILINE)
    assert text.count("in <lambda>") == 1


def elsewhere(data: bytes) -> str:
    """repr of the unpacked value's call, in a process that has nothing but the packages."""
    words = [sys.executable, "-c", "import pickle, sys; print(repr(pickle.load(sys.stdin.buffer)()))"]
    return subprocess.run(words, input=data, capture_output=True, timeout=60, check=True, cwd="/").stdout.decode()


def test_importable_functions_travel_by_name():
    assert unpack(pack(json.dumps)) is json.dumps
    assert unpack(pack(lines)) is lines


def test_module_on_no_path_travels_by_value(tmp_path, monkeypatch):
    file = tmp_path / "stray.py"
    file.write_text("BASE = 40\ndef helper(x):\n    return BASE + x\nclass Thing:\n    worth = 7\n")
    spec = importlib.util.spec_from_file_location("stray", file)
    stray = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "stray", stray)
    spec.loader.exec_module(stray)
    assert elsewhere(pack(functools.partial(stray.helper, 2))) == "42\n"
    assert elsewhere(pack(lambda: stray.Thing().worth)) == "7\n"


STREAMS = """
import os

def streams(pid):
    return [os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)]
"""
PROGRAM = f"""
import ctypes, json, sys
{STREAMS}
if "set" in sys.argv:
    sys.stderr = sys.stdout = open(os.devnull, "w")  # it has the number of a standard stream
import torch, unisono
unisono.init()
tensor = torch.ones(3)
unisono.all_reduce(tensor)

def program():
    libc = ctypes.CDLL(None)
    for number in (1, 2):
        libc.dprintf(number, b"%s", b"text of a library" * 100)
    print("text of the function")
    tensor = torch.ones(3)
    unisono.all_reduce(tensor)
    return tensor.tolist(), streams("self") + streams(os.getppid())

sums = [(program()[0], streams("self"))]
for hosts in (None, "1+1"):
    with unisono.World(2, hosts=hosts, timeout_s=60) as world:
        sums += world.run(program)
with open(sys.argv[1], "w") as file:
    json.dump([*sums, (None, streams("self"))], file)
"""
SCRIPT = f"""
import json, sys
{STREAMS}
with open(f"{{sys.argv[1]}}-{{os.environ['RANK']}}", "w") as file:
    json.dump(streams("self") + streams(os.getppid()), file)
"""
without_streams = functools.partial(run_python, stdin=None, preexec_fn=functools.partial(os.closerange, 0, 3))


@pytest.mark.cold
@pytest.mark.parametrize("stderr", ["none", "set"])
def test_closed_streams_are_not_reused(tmp_path: Path, stderr: str) -> None:
    """No file of the library gets the number of a standard stream, to which C code may write."""
    made = tmp_path / "made"
    without_streams("-c", PROGRAM, made, stderr)
    *sums, (_, after) = json.loads(made.read_text())
    assert [each for each, _ in sums] == [[1.0] * 3] + [[2.0] * 3] * 4
    assert set(after) == {os.devnull}
    assert not [link for _, links in sums for link in links if link.startswith(("socket:", "/memfd:", "anon_inode:"))]


@pytest.mark.cold
def test_closed_streams_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = ["run", "-n", "2", "--no-prefix", tmp_path / "script.py", tmp_path / "made"]
    without_streams("-m", "unisono", *words)
    for rank in range(2):
        assert json.loads((tmp_path / f"made-{rank}").read_text()) == [os.devnull] * 6
