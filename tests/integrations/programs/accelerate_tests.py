"""Run a test of accelerate's own in processes that accelerate has joined; each writes what it was in.

accelerate launch accelerate_tests.py MODULE DIRECTORY
"""

import json
import runpy
import sys
from pathlib import Path

from accelerate import PartialState
from torch import distributed


def main() -> None:
    module, directory = sys.argv[1:]
    del sys.argv[1:]
    state = PartialState(cpu=True)
    rank, group = state.process_index, type(distributed.group.WORLD).__name__
    found = {"group": group, "processes": state.num_processes, "kind": state.distributed_type.value}
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    Path(directory, f"{rank}.json").write_text(json.dumps(found))


main()
