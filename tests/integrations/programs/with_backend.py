"""Run a module as `python -m` does, in a process group made beforehand: with_backend.py BACKEND MODULE [ARGUMENT ...]

For programs that leave no choice of the backend: where there is a group, they use it.
"""

import runpy
import sys

from torch import distributed


def main() -> None:
    backend, module, *sys.argv[1:] = sys.argv[1:]
    distributed.init_process_group(backend)
    world = distributed.group.WORLD
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert distributed.group.WORLD in (world, None), "the program has made a group of its own"


main()
