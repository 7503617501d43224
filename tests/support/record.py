"""The record of runs of the whole suite, from which docs/versions.md says what has been tested."""

import datetime
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

FILE = Path(__file__).parents[2] / "benchmarks" / "results" / "support.json"


def record(stats: Mapping[str, Sequence[object]], commit: str, file: Path = FILE) -> None:
    """Append a run of the suite. stats: pytest's reports by outcome."""
    counts = {name: len(stats.get(name, ())) for name in ("passed", "skipped", "failed", "error")}
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
