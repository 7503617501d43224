"""The programs of large groups, kept on disk beside the machine code.

Each rank needs its own program, but compilation and proof need those of all ranks, and take time with the square of
their number, for a ring of 256 ranks up to half a minute. So one process makes the programs of a table, once per
installation, and the other ranks read theirs.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...base.python import no_collections
from ...base.records import digest
from ...schedule.proof import prove
from ...schedule.table import Schedule
from ..kept import Kept
from .compile_schedule import compile_schedule
from .program import Lowering, Program
from .program_proof import prove_programs

_FEWEST = 16
"""Programs of fewer ranks are made in milliseconds by each rank."""

_FOLDER = Path(__file__).parent
_SCHEDULE = _FOLDER.parents[1] / "schedule"
_READ = "contract", "hosts", "moves", "proof", "table"
_SOURCES = [*_FOLDER.glob("*.py"), *(_SCHEDULE / f"{name}.py" for name in _READ)]


def program(schedule: Schedule, lowering: Lowering, rank: int) -> Program:
    """The program of a rank.

    The table has been proved, and the programs of all ranks, now or when they were kept.
    """
    if schedule.ranks < _FEWEST:
        return _proved(schedule, lowering)[rank]
    key = digest(schedule.digest, lowering, schedule.hosts.members if schedule.hosts else ())
    kept = Kept(f"program-{key:016x}", _SOURCES, lambda: _packed(schedule, lowering), np.__version__)
    found: Program = pickle.loads(pickle.loads(kept.content())[rank])  # noqa: S301  as trusted as machine code
    return found


def _packed(schedule: Schedule, lowering: Lowering) -> bytes:
    """The programs of all ranks, each in bytes of its own."""
    with no_collections():  # a fourth of the time: there are millions of objects, in no circle
        return pickle.dumps([*map(pickle.dumps, _proved(schedule, lowering))])


def _proved(schedule: Schedule, lowering: Lowering) -> Sequence[Program]:
    prove(schedule)
    programs = compile_schedule(schedule, lowering)
    prove_programs(schedule, programs, lowering)
    return programs
