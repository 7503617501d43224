"""What a user gets wrong on the command line is said in a line: what is wrong, and what to do. No traceback."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unisono.tools.cli import app

MISTAKES = {
    "a process that is not there": (["doctor", str(1 << 22)], "there is no process 4194304 on this host"),
    "no process at all": (["top", "0"], "there is no process 0 on this host"),
    "fewer than no ranks": (["doctor", "--ranks", "-1", "--seconds", "0"], "--ranks"),
    "too many ranks for a picture": (["draw", "all_reduce.ring", "--ranks", "100000"], "100000 ranks are too many"),
    "a page where no file can be": (["draw", "all_reduce.ring", "-o", "/proc/no.html"], "cannot write /proc/no.html"),
    "a trace where no folder can be": (["trace", "-o", "/proc/no", "--", "true"], "cannot make the folder /proc/no"),
    "a trace where no folder is meant": (["trace", "-o", "t.json", "--", "true"], "-o names a folder"),
    "a script that is no command": (["trace", "train.py", "--fast"], "unisono trace -- python train.py --fast"),
    "a word for a number": (["run", __file__, "--ranks=two"], "--ranks needs a number of processes"),
    "a command that there is not": (["explian", "all_reduce"], "No such command 'explian'. Did you mean 'explain'?"),
    "an algorithm that there is not": (["draw", "rign"], "'rign' is no collective: did you mean all_gather.ring,"),
    "no number": (["run", __file__, "-n"], "-n needs a number of processes"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_a_line(mistake: str) -> None:
    arguments, said = MISTAKES[mistake]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.output.split()), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception


def test_a_process_without_a_job_is_told_from_one_that_is_not_there() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as other:
        done = CliRunner().invoke(app, ["doctor", str(other.pid)])
        assert other.stdin is not None
        other.stdin.close()  # ends it
    assert done.exit_code == 2, done.output
    assert f"process {other.pid} has no job of unisono" in " ".join(done.output.split())


def test_the_status_of_a_traced_command_is_kept(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["trace", "-o", str(tmp_path), "--", "sh", "-c", "exit 3"])
    assert (done.exit_code, "sh has ended with status 3" in done.output) == (3, True), done.output


def test_the_help_of_run_shows_the_prefix() -> None:
    assert "[rank 2] before each" in " ".join(
        CliRunner().invoke(app, ["run", "--help"]).output.replace("│", " ").split()
    )


def test_ranks_are_ours_in_both_forms_directly_after_the_script(tmp_path: Path) -> None:
    script = tmp_path / "counts.py"
    script.write_text("import sys, unisono\nsys.exit([unisono.get_world_size(), *sys.argv[1:]] != [3, '--ranks=7'])\n")
    done = CliRunner().invoke(app, ["run", str(script), "--ranks=3", "--ranks=7"])
    assert done.exit_code == 0, done.output


def test_ranks_that_disagree_are_no_wrong_command(tmp_path: Path) -> None:
    script = tmp_path / "odd.py"
    script.write_text("import torch, unisono\nunisono.all_reduce(torch.ones(2 + unisono.get_rank()))\n")
    done = CliRunner().invoke(app, ["run", "-n", "2", str(script)])
    assert (done.exit_code, "the ranks disagree" in done.output) == (1, True), done.output
