"""For each Python in the emulator: QEMU makes up /proc/PID/stat of its own process, as it would be for a new one.

So two processes would see different times at which the process has started. They see the same by the main thread.
"""

import os
from pathlib import Path

_read_text = Path.read_text


def _true_text(path: Path, encoding: str | None = None, errors: str | None = None) -> str:
    own = os.getpid()
    return _read_text(
        Path(f"/proc/self/task/{own}/stat") if str(path) == f"/proc/{own}/stat" else path, encoding, errors
    )


Path.read_text = _true_text  # type: ignore[method-assign]
