"""The programs of large groups, kept on disk beside the machine code.

Each rank needs its own program, but compilation and proof need those of all ranks, and take time with the square of
their number. So one process makes the programs of a table, once per installation, and the other ranks read theirs.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path

from ...schedule.proof import prove
from ...schedule.table import Schedule
from ..machine_code import Kept
from .compile_schedule import compile_schedule
from .program import Lowering, Program
from .program_proof import prove_programs

_FEWEST = 16
"""Programs of fewer ranks are made in milliseconds by each rank."""

_FOLDER = Path(__file__).parent
_SCHEDULE = _FOLDER.parents[1] / "schedule"
_SOURCES = [*_FOLDER.glob("*.py"), *(_SCHEDULE / f"{name}.py" for name in ("contract", "moves", "proof", "table"))]


def program(schedule: Schedule, lowering: Lowering, rank: int) -> Program:
    """The program of a rank. The table has been proved, and the programs of all ranks, here or when they were kept."""
    if schedule.ranks < _FEWEST:
        return _proved(schedule, lowering)[rank]
    name = f"program-{schedule.digest:016x}-{sum(bit << k for k, bit in enumerate(lowering))}"
    kept = Kept(name, _SOURCES, lambda: pickle.dumps([*map(pickle.dumps, _proved(schedule, lowering))]))
    found: Program = pickle.loads(pickle.loads(kept.content())[rank])  # noqa: S301  as trusted as machine code
    return found


def _proved(schedule: Schedule, lowering: Lowering) -> Sequence[Program]:
    prove(schedule)
    programs = compile_schedule(schedule, lowering)
    prove_programs(schedule, programs, lowering)
    return programs
