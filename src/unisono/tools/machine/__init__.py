"""What is right with the machine that ranks run on, and what to change: `examine`, made of small checks.

A check is a function of what Linux says in files, below a root that may be a test's, and of what was asked or measured.
"""

from __future__ import annotations

from .examine import Measurements, examine, starts, worst_first
from .finding import Finding, problem
from .linux_files import Files
from .pages import time_copies
from .probe import Probed, probe
from .processor_time import TimeShares, look_at_load, look_at_time, shares_between
from .processors import check_load
from .speed import Speed, fastest

__all__ = [
    "Files", "Finding", "Measurements", "Probed", "Speed", "TimeShares", "check_load", "examine", "fastest",
    "look_at_load", "look_at_time", "probe", "problem", "shares_between", "starts", "time_copies", "worst_first",
]  # fmt: skip
