"""A process that runs one script after the other, each as `__main__`: it loads torch once, and has one fork server.

Lines on standard input are paths of scripts. Each is run in its folder, and answered on the descriptor that is this
process's argument, with a line of JSON: "" or the traceback of its error. What scripts print goes to standard output.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import torch
from torch import distributed

import unisono


def run(script: str) -> str:
    """Run a script; return the traceback of its error, or an empty text."""
    before, default = dict(os.environ), torch.get_default_device()
    os.chdir(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:  # noqa: BLE001  whatever it is, the test shows it
        return traceback.format_exc()
    finally:
        sys.stdout.flush()
        os.environ.clear()
        os.environ.update(before)
        torch.set_default_device(default)
    if distributed.is_initialized():
        return (
            f"{script} leaves a process group of torch, which other scripts would find: run it as a process of its own"
        )
    unisono.shutdown()  # as at the end of a program
    return ""


def serve(answers: int) -> None:
    """Run scripts until standard input ends."""
    with os.fdopen(answers, "w") as out:
        for line in sys.stdin:
            print(json.dumps(run(line.strip())), file=out, flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
