"""For each Python in the emulator: QEMU makes up /proc/PID/stat of its own process, as it would be for a new one.

So two processes would see different times at which the process has started. They see the same by the main thread.
"""

import builtins
import io
import os
from typing import Any

_open = builtins.open


def _true_file(file: Any, *how: Any, **named: Any) -> Any:
    own = os.getpid()
    return _open(f"/proc/self/task/{own}/stat" if str(file) == f"/proc/{own}/stat" else file, *how, **named)


builtins.open = io.open = _true_file
