"""Mistakes on the command line get one line and no traceback, as do full streams; `unisono run` starts scripts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(("line", "words"), MISTAKES)
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


NATIVE = "import os, sys, torch, helper\nimport unisono as dist\ndist.init()"
TORCH = """
import os, sys, torch, helper
import torch.distributed as dist
dist.init_process_group('unisono')
assert os.environ['LOCAL_RANK'] == str(dist.get_rank())
"""
SUMS = """
t = torch.full((2,), 10.0 ** dist.get_rank())
dist.all_reduce(t)
print(sys.argv[1:], t.tolist(), __name__, os.path.basename(__file__), helper.VALUE)
sys.exit()
"""
SUMMED = [f"[rank {rank}] ['--epochs', '2', '-n', '7'] [111.0, 111.0] __main__ train.py 17" for rank in range(3)]
SAYS = "import sys, unisono\nprint(unisono.get_world_size(), sys.argv[1:])"
DIVIDES = "import unisono\ndef work():\n    1 // unisono.get_rank()\nwork()\n"
DISAGREES = "import torch, unisono\nunisono.all_reduce(torch.ones(2 + unisono.get_rank()))\n"
EXITS = "import unisono\nrank = unisono.get_rank()\nif rank >= {}: raise SystemExit(3)\nprint('well')"
TRACEBACK = (
    r'(?s)\A(?!.*/ranks/launch/).*rank 0 failed:.* File "train.py", line 3, in work.*\nZeroDivisionError: .*\n\Z'
)
ONE, BOTH = r"\Aunisono: rank 1 failed:", r"(?s)rank 0 failed:.*rank 1 failed:"
RUNS = {
    "native": ("train.py -n 3 --epochs 2 -n 7", NATIVE + SUMS, 0, SUMMED, r"\A\Z"),
    "torch.distributed": ("train.py -n 3 --epochs 2 -n 7", TORCH + SUMS, 0, SUMMED, r"\A\Z"),
    "options before": ("--ranks 2 --no-prefix train.py --help", SAYS, 0, ["2 ['--help']"] * 2, ""),
    "options after": ("--no-prefix train.py --ranks=3 --ranks=7", SAYS, 0, ["3 ['--ranks=7']"] * 3, ""),
    "rank fails": ("train.py -n 2", DIVIDES, 1, [], TRACEBACK),
    "ranks disagree": ("-n 2 train.py", DISAGREES, 1, [], "the ranks disagree"),
    "others go on": ("--keep-going train.py -n 2", EXITS.format(1), 0, ["[rank 0] well"], ONE),
    "all fail": ("--keep-going train.py -n 2", EXITS.format(0), 1, [], BOTH),
}
"""Arguments of `unisono run`, the script, the exit code, the lines of its output, and what is in the other stream."""


@pytest.mark.parametrize("case", RUNS)
def test_script_runs_on_ranks(case: str, tmp_path: Path) -> None:
    words, script, code, lines, said = RUNS[case]
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "helper.py").write_text("VALUE = 17\n")
    done = run_python("-m", "unisono", "run", *words.split(), cwd=tmp_path)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (code, lines), done.stderr
    assert re.search(said, done.stderr), done.stderr


FULL = "unisono: a read or write failed: No space left on device\n"
GONE = "unisono: the working directory has been deleted: change to another one\n"
ENDS = [
    ("U explain >/dev/full", 1, FULL, ""),
    ("U --version >/dev/full", 1, FULL, ""),
    ("U --help >/dev/full", 1, FULL, ""),
    ("U simulate all_reduce --hosts 2x2 >/dev/full", 1, FULL, ""),
    ("(U explain; echo $? >&2) | true", 0, "1\n", ""),
    ("U explain >&-", 0, "", ""),
    ("U explain 2>&-", 0, "", "all_reduce"),
    ("U explain <&-", 0, "", "all_reduce"),
    ("U explain <&- >&- 2>&-", 0, "", ""),
    ("PYTHONIOENCODING=ascii U draw all_reduce.ring", 0, "", "0 ???"),
    ("mkdir gone; cd gone; rmdir ../gone; U explain all_reduce", 2, GONE, ""),
    ("echo raise KeyboardInterrupt >typer.py; PYTHONPATH=. U explain", 130, "", ""),
]
"""What a shell runs, the exit code, and what is in its two streams."""


@pytest.mark.parametrize(("line", "code", "stderr", "stdout"), ENDS)
def test_commands_end_well(line: str, code: int, stderr: str, stdout: str, tmp_path: Path) -> None:
    words = ["sh", "-c", line.replace("U ", f"{sys.executable} -m unisono ")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (code, stderr)
    assert stdout in done.stdout
    assert bool(stdout) == bool(done.stdout)
