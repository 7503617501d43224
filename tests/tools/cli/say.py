"""Commands in this process, and what they print."""

import shlex

from typer.testing import CliRunner

from unisono.tools.cli import app


def say(line: str, code: int = 0) -> str:
    """What `unisono LINE` prints, with the one line of its error, or the box of the parser of options, at the end."""
    done = CliRunner().invoke(app, shlex.split(line))
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("wrote ", "LogGOPSim "))]
    assert done.stderr.startswith("Usage: ") or (code > 1) <= len(lines) <= (code > 0), done.stderr
    return done.stdout + done.stderr if code else done.stdout


def flat(line: str, code: int = 0) -> str:
    """The same as one line with single spaces."""
    return " ".join(say(line, code).split())
