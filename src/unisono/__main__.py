"""The command `unisono`, also as `python -m unisono`. Here is what all commands share: streams, errors, Ctrl-C."""

import errno
import os
import sys
from typing import Any

from .base.linux import fill_standard_streams
from .base.python import tell
from .base.release import NAME


def main() -> None:
    """Run the command line. Errors of the system end it with a line on standard error, and Ctrl-C ends it silently."""
    try:
        _make_ready()
        from .tools.cli import app  # here, as Ctrl-C may come during imports

        try:
            app(prog_name=NAME)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it again when it ends
        if error.errno != errno.EPIPE:
            what = f"cannot use {error.filename}" if error.filename else "a read or write failed"
            tell(f"{NAME}: {what}: {error.strerror}\n")
        sys.exit(1)


def _make_ready() -> None:
    """Let all commands find a working directory, open streams, and a standard output that takes all characters."""
    fill_standard_streams()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # it was closed
            setattr(sys, name, open(number, "w" if number else "r"))  # noqa: SIM115  for all commands
    out: Any = sys.stdout
    out.reconfigure(errors="replace")
    try:
        os.getcwd()
    except FileNotFoundError:
        tell(f"{NAME}: the working directory has been deleted: change to another one\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
