"""The line that UNISONO_DEBUG=1 writes for each call."""

from __future__ import annotations

import sys
import time

from ...base.records import CallRecord
from ...base.units import format_bytes, format_seconds
from ...ranks.group.group import Group


def debug_line(group: Group, record: CallRecord, nbytes: int, why: str, began: float) -> None:
    """Write the line to standard error. nbytes: of a block. why: for this algorithm. began: by `perf_counter`."""
    took = format_seconds(time.perf_counter() - began)
    who = f"rank {group.rank} of group {group.name!r}" if group.parent else f"rank {group.rank}"
    sys.stderr.write(f"[{who}] {record.text}: {format_bytes(nbytes)} in {took}; {why}\n")
