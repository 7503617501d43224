"""The record of runs of the whole suite, from which docs/versions.md says what has been tested."""

import datetime
import json
import platform
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parents[1]
FILE = TESTS.parent / "benchmarks" / "results" / "support.json"


def record(reporter: pytest.TerminalReporter, commit: str, file: Path = FILE) -> str:
    """Append a run of the whole suite. Returns a line for the terminal."""
    option, args = reporter.config.option, reporter.config.args
    whole = not option.keyword and not option.collectonly and option.markexpr in ("", "not long")
    if not whole or any(Path(name).resolve() != TESTS for name in args):
        return "not recorded: UNISONO_RECORD=1 is for runs of the whole suite, as by `make test`"
    counts = {name: len(reporter.stats.get(name, ())) for name in ("passed", "skipped", "failed", "error")}
    run = {
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
        "system": f"{platform.system()} {platform.machine()}",
        "commit": commit[:8],
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "passed": counts["passed"],
        "skipped": counts["skipped"],
        "failed": counts["failed"] + counts["error"],
    }
    runs = [*json.loads(file.read_text()), run] if file.exists() else [run]
    file.write_text("[\n" + ",\n".join(f" {json.dumps(each)}" for each in runs) + "\n]\n")
    return f"recorded in {file}"
