"""What the system says of a process: what it does, who debugs it, which signals it has handlers for."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class ProcessStatus(NamedTuple):
    """A process as /proc/PID/status shows it; without a state if it cannot be seen.

    state: of its first thread. R: runs; S: sleeps; D: waits for the system; T: stopped by a signal; t: by a debugger;
    Z, X: has ended. tracer: the process that debugs it; 0: none. handled, blocked, pending: signals, one bit each; the
    last two of its first thread, which mostly gets them.
    """

    state: str = ""
    tracer: int = 0
    handled: int = 0
    blocked: int = 0
    pending: int = 0

    def takes(self, number: int) -> bool:
        """Would it run a handler of its own, now, if it were sent this signal? A debugger would stop it instead."""
        handled = self.handled >> (number - 1) & 1
        return bool(handled) and not self.busy(number) and not self.tracer and self.state in ("R", "S", "D")

    def busy(self, number: int) -> bool:
        """Is it about to run its handler of this signal, or in it, or does it block the signal?"""
        return bool((self.blocked | self.pending) >> (number - 1) & 1)


def process_status(pid: int) -> ProcessStatus:
    """The status of a process now."""
    with suppress(OSError, KeyError, ValueError):
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        said = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        handled, blocked, own, shared = (int(said[name][0], 16) for name in ("SigCgt", "SigBlk", "SigPnd", "ShdPnd"))
        return ProcessStatus(said["State"][0], int(said["TracerPid"][0]), handled, blocked, own | shared)
    return ProcessStatus()
