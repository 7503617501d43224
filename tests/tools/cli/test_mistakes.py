"""Mistakes on the command line get one line and no traceback; `unisono run` starts scripts and tells failures."""

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.programs import run_python
from unisono.tools.cli import app

MISTAKES = {
    "a process that is not there": (["doctor", str(1 << 22)], "process 4194304 does not exist on this host"),
    "no process at all": (["top", "0"], "process 0 does not exist on this host"),
    "fewer than no ranks": (["check", "--ranks", "-1"], "--ranks"),
    "no process to explain": (["doctor"], "To check this machine: unisono check"),
    "too many ranks for a picture": (["draw", "all_reduce.ring", "--ranks", "100000"], "100000 ranks are too many"),
    "too many ranks": (["explain", "all_reduce", "--ranks", "99999999"], "99,999,999 ranks are too many: give at most"),
    "a page where no file can be": (["draw", "all_reduce.ring", "-o", "/proc/no.html"], "cannot write /proc/no.html"),
    "a trace where no folder can be": (["trace", "-o", "/proc/no", "--", "true"], "cannot make the folder /proc/no"),
    "a trace where no folder is meant": (["trace", "-o", "t.json", "--", "true"], "-o names a folder"),
    "a script that is no command": (["trace", "train.py", "--fast"], "unisono trace -- python train.py --fast"),
    "a word for a number": (["run", __file__, "--ranks=two"], "--ranks needs a number of processes"),
    "a command that there is not": (["explian", "all_reduce"], "No such command 'explian'. Did you mean 'explain'?"),
    "a name without a letter": (["draw", ""], "'' is not a collective"),
    "hosts without end": (["explain", "all_reduce", "--hosts", "1000000x1000000"], "give at most 65,536"),
    "no number": (["run", __file__, "-n"], "-n needs a number of processes"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_a_line(mistake: str) -> None:
    arguments, said = MISTAKES[mistake]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.output.split()), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception


@pytest.mark.parametrize(
    "text",
    [
        "raise OSError('no')",
        "exit('no')",
        "import unisono\n@unisono.algorithm('all_reduce')\ndef ring(r, p):\n    exit('no')\n    yield",
    ],
)
def test_own_file_that_fails(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["explain", "mine.py:ring"])
    assert done.exit_code == 2, done.output
    kind, line = "OSError" if "OSError" in text else "SystemExit", 4 if "def" in text else 1
    assert f"unisono: mine.py raises {kind}: no ({tmp_path}/mine.py:{line})" in done.output.replace("\n", "")


def test_process_without_job_is_named() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as other:
        done = CliRunner().invoke(app, ["doctor", str(other.pid)])
        other.stdin.close()  # ends it
    assert done.exit_code == 2, done.output
    assert f"process {other.pid} has no job of unisono" in " ".join(done.output.split())


def test_the_status_of_a_traced_command_is_kept(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["trace", "-o", str(tmp_path), "--", "sh", "-c", "exit 3"])
    assert (done.exit_code, "sh has ended with status 3" in done.output) == (3, True), done.output


def test_ranks_option_directly_after_the_script(tmp_path: Path) -> None:
    script = tmp_path / "counts.py"
    script.write_text("import sys, unisono\nsys.exit([unisono.get_world_size(), *sys.argv[1:]] != [3, '--ranks=7'])\n")
    done = CliRunner().invoke(app, ["run", str(script), "--ranks=3", "--ranks=7"])
    assert done.exit_code == 0, done.output


def test_ranks_that_disagree_are_no_wrong_command(tmp_path: Path) -> None:
    script = tmp_path / "odd.py"
    script.write_text("import torch, unisono\nunisono.all_reduce(torch.ones(2 + unisono.get_rank()))\n")
    done = CliRunner().invoke(app, ["run", "-n", "2", str(script)])
    assert (done.exit_code, "the ranks disagree" in done.output) == (1, True), done.output


SCRIPT = """
import os, sys
import torch
import {module}
{start}
t = torch.full((2,), 10.0 ** {rank})
{call}
print(sys.argv[1:], t.tolist(), __name__, os.path.basename(__file__), helper.VALUE)
sys.exit()
"""

NATIVE = {
    "module": "helper, unisono", "start": "unisono.init()", "rank": "unisono.get_rank()",
    "call": "unisono.all_reduce(t)",
}  # fmt: skip
TORCH = {
    "module": "helper, torch.distributed as dist",
    "start": "dist.init_process_group('unisono')\nassert os.environ['LOCAL_RANK'] == str(dist.get_rank())",
    "rank": "dist.get_rank()", "call": "dist.all_reduce(t)\ndist.destroy_process_group()",
}  # fmt: skip


def unisono(*arguments):
    return run_python("-m", "unisono", *arguments)


@pytest.fixture
def script(tmp_path):
    (tmp_path / "helper.py").write_text("VALUE = 17\n")

    def write(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("way", [NATIVE, TORCH], ids=["native", "torch.distributed"])
def test_a_script_on_three_ranks(script, way):
    done = unisono("run", script(SCRIPT.format(**way)), "-n", 3, "--epochs", "2", "-n", "7")
    assert done.returncode == 0, done.stderr
    said = "['--epochs', '2', '-n', '7'] [111.0, 111.0] __main__ train.py 17"
    assert sorted(done.stdout.splitlines()) == [f"[rank {rank}] {said}" for rank in range(3)]


def test_no_prefix_and_options_first(script):
    done = unisono("run", "--ranks", 2, "--no-prefix", script("import sys\nprint(sys.argv[1:])"), "--help")
    assert done.stdout == "['--help']\n" * 2


def test_failed_rank_fails_the_command(script):
    text = "import unisono\ndef work():\n    1 // unisono.get_rank()\nwork()\n"
    path = script(text)
    done = unisono("run", path, "-n", 2)
    assert done.returncode == 1
    assert "rank 0 failed:" in done.stderr
    assert f'File "{path}", line 3, in work' in done.stderr
    assert "/ranks/launch/" not in done.stderr
    assert done.stderr.rstrip().endswith("ZeroDivisionError: integer division or modulo by zero")


@pytest.mark.parametrize(("fail_from", "code"), [(1, 0), (0, 1)])
def test_keep_going_lets_the_others_end(script, fail_from, code):
    text = f"import unisono\nrank = unisono.get_rank()\nif rank >= {fail_from}: raise SystemExit(3)\nprint('well')"
    done = unisono("run", "--keep-going", script(text), "-n", 2)
    assert done.returncode == code
    assert ("[rank 0] well" in done.stdout) == (code == 0)
    assert [f"rank {rank} failed:" in done.stderr for rank in (0, 1)] == [code == 1, True]
