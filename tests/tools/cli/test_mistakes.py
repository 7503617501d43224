"""Mistakes on the command line get one line and no traceback; `unisono run` starts scripts and tells failures."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.each import each
from tests.support.programs import run_python
from tests.support.say import refused

MISTAKES = [
    (f"doctor {1 << 22}", "process 4194304 does not exist on this host"),
    ("top 0", "process 0 does not exist on this host"),
    ("check --ranks -1", "--ranks"),
    ("explian all_reduce", "No such command 'explian'. Did you mean 'explain'?"),
    ("bench scan.linear", "Gloo has no scan"),
    (f"run {__file__} --ranks=two", "--ranks needs a number of processes"),
    (f"run {__file__} -n", "-n needs a number of processes"),
    ("trace -o /proc/no -- true", "cannot make the folder /proc/no"),
    ("trace -o t.json -- true", "-o takes a folder"),
    ("trace train.py --fast", "unisono trace -- python train.py --fast"),
    ("explain all_redduce", "unknown collective 'all_redduce'. Did you mean all_reduce"),
    ("draw ''", "unknown collective ''. Use one of broadcast, reduce"),
    ("draw ring", "Did you mean all_gather.ring, reduce_scatter.ring, all_reduce.ring?"),
    ("explain all_reduce --bytes lots", "got 'lots', expected a number of bytes"),
    ("explain all_reduce --root 1", "all_reduce has no root"),
    ("explain all_reduce --ranks 0", "0 ranks"),
    ("explain all_reduce --ranks 99999999", "got 99,999,999 ranks, expected at most"),
    ("explain nothing.py:here", "nothing.py does not exist"),
    ("draw all_reduce.ring --output x.pdf", "must end in .svg, .html, .txt"),
    ("draw all_reduce.ring all_reduce.tree -o x.svg", "Add -o page.html"),
    ("draw all_reduce.ring --link 1Gbit", "Add -o page.html"),
    ("draw all_reduce.ring --output /proc/no.svg", "cannot write /proc/no.svg"),
    ("draw all_reduce.ring --ranks 64 --output x.svg", "Draw fewer ranks"),
    ("draw all_reduce.ring --ranks 300", "300 ranks, 300 chunks, 598 rounds) are too many for a text. Draw fewer"),
    ("draw all_reduce.ring --ranks 300 --output x.txt", "use unisono explain"),
    ("draw all_reduce.ring --ranks 100000", "100000 ranks are too many"),
    ("draw all_reduce --hosts 2x2 --ranks 3", "Leave out --ranks 3"),
    ("explain all_reduce --hosts 2x2 --ranks 5", "--hosts 2x2 has 4 ranks. Leave out --ranks 5"),
    ("explain all_reduce --hosts 2x2 --link fast", "such as 1Gbit,100us"),
    ("explain all_reduce --hosts 1000000x1000000", "expected at most 65,536"),
    ("explain all_reduce --link 1Gbit", "Add --hosts"),
    ("explain all_gather --hosts 2x2 --measure", "Leave out --hosts"),
    ("explain all_gather --ranks 1000 --measure", "got 1000 ranks"),
    ("explain all_reduce.swnig --hosts 2x2", "unknown algorithm 'swnig' for all_reduce. Did you mean 'swing'?"),
    ("explain allreduce --hosts 2x2", "Did you mean all_reduce"),
    ("explain reduce_scatter --hosts 1024x8", "would have about 6.7e+07 rows. Give fewer hosts"),
    ("export all_reduce.ring --format chakra", "one file per rank"),
    ("export all_reduce.ring --format goat", "unknown format 'goat'. Use one of"),
    ("export all_reduce.ring --format msccl -o /proc/no.xml", "cannot write"),
    ("simulate all_reduce.rnig", "unknown algorithm all_reduce.rnig for 512 ranks"),
    ("simulate all_reduce --late-rank 512:1ms", "expected one of the ranks 0 to 511 and a time"),
    ("simulate all_reduce --late-rank soon", "expected one of the ranks 0 to 511 and a time"),
]


@each("line, words", MISTAKES)
def test_mistake_gets_one_line(line: str, words: str) -> None:
    assert words in refused(line)


HEAD = (
    "from unisono import algorithm\nfrom unisono.schedule import send\n@algorithm('all_gather')\ndef ring(r, p):\n    "
)
OWN = {
    "raise OSError('no')": (2, "mine.py raises OSError: no (FOLDER/mine.py:1)"),
    "exit('no')": (2, "mine.py raises SystemExit: no (FOLDER/mine.py:1)"),
    "def": (2, "mine.py raises SyntaxError: invalid syntax"),
    "pass": (2, "has no function 'ring'"),
    "from unisono.schedule import send as ring": (2, '@unisono.algorithm("all_reduce")'),
    f"{HEAD}exit('no')\n    yield": (2, "mine.py raises SystemExit: no (FOLDER/mine.py:5)"),
    f"{HEAD}yield send(r, (r + 1) % p, [][0])": (2, "mine.py raises IndexError: list index out of range ("),
    f"{HEAD}return 3": (1, "ring returns 3, but it must yield rounds"),
    f"{HEAD}yield None": (1, "round 0 is None, but it must yield what `send` returns, or a list of it"),
    f"{HEAD}yield (r, r)": (1, "yield what `send` returns"),
}
"""Text of a user's own file -> exit code and words, by explain and draw alike."""


@pytest.mark.parametrize("command", ["explain", "draw"])
@pytest.mark.parametrize("text", OWN)
def test_own_file_that_fails(text: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    code, words = OWN[text]
    assert words.replace("FOLDER", f"{tmp_path}") in refused(f"{command} mine.py:ring", code)


def test_process_without_job_is_named() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as other:
        said = refused(f"doctor {other.pid}")
        other.communicate()  # ends it
    assert f"process {other.pid} has no unisono job" in said


def test_status_of_a_traced_command_is_kept(tmp_path: Path) -> None:
    assert "sh has ended with status 3" in refused(f"trace -o {tmp_path} -- sh -c 'exit 3'", 3)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """script(text): the path of a script with this text, and a module beside it."""
    path = tmp_path / "train.py"
    (tmp_path / "helper.py").write_text("VALUE = 17\n")

    def write(text: str) -> Path:
        path.write_text(text)
        return path

    return write


def unisono(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return run_python("-m", "unisono", *arguments)


NATIVE = "import unisono as dist\ndist.init()"
TORCH = """
import torch.distributed as dist
dist.init_process_group('unisono')
assert os.environ['LOCAL_RANK'] == str(dist.get_rank())
"""
SCRIPT = """
t = torch.full((2,), 10.0 ** dist.get_rank())
dist.all_reduce(t)
print(sys.argv[1:], t.tolist(), __name__, os.path.basename(__file__), helper.VALUE)
sys.exit()
"""


@pytest.mark.parametrize("start", [NATIVE, TORCH], ids=["native", "torch.distributed"])
def test_script_on_three_ranks(script: Callable[[str], Path], start: str) -> None:
    path = script(f"import os, sys, torch, helper\n{start}{SCRIPT}")
    done = unisono("run", path, "-n", 3, "--epochs", "2", "-n", "7")
    assert done.returncode == 0, done.stderr
    said = "['--epochs', '2', '-n', '7'] [111.0, 111.0] __main__ train.py 17"
    assert sorted(done.stdout.splitlines()) == [f"[rank {rank}] {said}" for rank in range(3)]


def test_options_before_and_after_the_script(script: Callable[[str], Path]) -> None:
    path = script("import sys, unisono\nprint(unisono.get_world_size(), sys.argv[1:])")
    done = unisono("run", "--ranks", 2, "--no-prefix", path, "--help")
    assert done.stdout == "2 ['--help']\n" * 2
    assert unisono("run", "--no-prefix", path, "--ranks=3", "--ranks=7").stdout == "3 ['--ranks=7']\n" * 3


def test_failed_rank_fails_the_command(script: Callable[[str], Path]) -> None:
    path = script("import unisono\ndef work():\n    1 // unisono.get_rank()\nwork()\n")
    done = unisono("run", path, "-n", 2)
    assert done.returncode == 1
    assert "rank 0 failed:" in done.stderr
    assert f'File "{path}", line 3, in work' in done.stderr
    assert "/ranks/launch/" not in done.stderr
    assert done.stderr.rstrip().endswith("ZeroDivisionError: integer division or modulo by zero")


def test_ranks_that_disagree_are_no_wrong_command(script: Callable[[str], Path]) -> None:
    path = script("import torch, unisono\nunisono.all_reduce(torch.ones(2 + unisono.get_rank()))\n")
    done = unisono("run", "-n", 2, path)
    assert (done.returncode, "the ranks disagree" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize(("fail_from", "code"), [(1, 0), (0, 1)])
def test_keep_going_lets_the_others_end(script: Callable[[str], Path], fail_from: int, code: int) -> None:
    text = f"import unisono\nrank = unisono.get_rank()\nif rank >= {fail_from}: raise SystemExit(3)\nprint('well')"
    done = unisono("run", "--keep-going", script(text), "-n", 2)
    assert done.returncode == code
    assert ("[rank 0] well" in done.stdout) == (code == 0)
    assert [f"rank {rank} failed:" in done.stderr for rank in (0, 1)] == [code == 1, True]
