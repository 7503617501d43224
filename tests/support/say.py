"""Commands in this process, and what they print."""

import shlex

from typer.testing import CliRunner

from unisono.tools.cli import app

BESIDE = "wrote ", "LogGOPSim "  # how lines on standard error begin that are no errors


def _run(line: str, code: int, columns: int) -> tuple[str, str]:
    done = CliRunner().invoke(app, shlex.split(line), env={"COLUMNS": f"{columns}"})
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.stdout, "".join(line for line in done.stderr.splitlines(True) if not line.startswith(BESIDE))


def say(line: str, code: int = 0, columns: int = 80) -> str:
    """What `unisono LINE` prints. If it ends well, nothing of it is an error."""
    said, errors = _run(line, code, columns)
    assert code or not errors, errors
    return said


def flat(line: str, code: int = 0) -> str:
    """The same as one line with single spaces, printed on a wide terminal."""
    return " ".join(say(line, code, 200).split())


def refused(line: str, code: int = 2) -> str:
    """The one line of a command that fails, or the box of the parser of options."""
    _, errors = _run(line, code, 200)
    assert errors.startswith("Usage: ") or errors.count("\n") == 1, errors
    return " ".join(errors.split())
