"""A collective as a table of transfers: tables, the algorithms that make them, proofs, choice, prices and drawings."""

from .combine import fold, on, once, par, pipeline, seq, transpose
from .contract import BLOCKED, HOLDERS, ONE_IN, ONE_OUT, REDUCING, ROOTED, Contract, Fault, contract
from .counts import Bounds, Counts, Levels, count, levels, lower_bounds
from .hosts import Hosts
from .moves import Move, check_rows, moves
from .proof import Proof, find_fault, prove, sample
from .symmetric import Rank, Symmetric
from .table import (
    ADD,
    COPY,
    DBUF,
    DCHUNK,
    DST,
    JOIN,
    OP,
    ROUND,
    SBUF,
    SCHUNK,
    SRC,
    N,
    Rows,
    Schedule,
    T,
    Transfer,
    X,
    Y,
    expand,
    send,
    spread,
    trace,
    unwrap,
)

__all__ = [
    "ADD", "BLOCKED", "COPY", "DBUF", "DCHUNK", "DST", "HOLDERS", "JOIN", "ONE_IN", "ONE_OUT", "OP", "REDUCING",
    "ROOTED", "ROUND", "SBUF", "SCHUNK", "SRC", "Bounds", "Contract", "Counts", "Fault", "Hosts", "Levels", "Move",
    "N", "Proof", "Rank", "Rows", "Schedule", "Symmetric", "T", "Transfer", "X", "Y", "check_rows",
    "contract", "count", "expand", "find_fault", "fold", "levels", "lower_bounds", "moves", "on", "once",
    "par", "pipeline", "prove", "sample", "send", "seq", "spread", "trace", "transpose", "unwrap",
]  # fmt: skip


def _page(table: Schedule) -> str:
    """The page that plays the rounds, for a notebook."""
    from .draw import notebook  # only a notebook needs it

    return notebook(table)


Schedule._repr_html_ = _page  # type: ignore[attr-defined]  # the modules that draw import the file of Schedule
