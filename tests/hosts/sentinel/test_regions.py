"""What a host keeps of how a rank of another host has gone. test_weak_memory.py has the order of line and board."""

import pytest

from unisono.base.records import Departure, DepartureKind
from unisono.engine.memory.board import BOARD_BYTES, LINE, Board
from unisono.hosts.sentinel.regions import _Pages


class Member:
    """A rank that ends its call, which its line says, and then leaves, which its board says."""

    def __init__(self) -> None:
        self.line, self.page = memoryview(bytearray(LINE)), memoryview(bytearray(BOARD_BYTES))
        self.board = Board(self.page)

    def end_and_leave(self) -> None:
        self.line.cast("q")[0] = 4096
        self.board.set_gone(DepartureKind.RETURNED, "")


@pytest.mark.parametrize("how", DepartureKind)
@pytest.mark.parametrize("run", [1, 2])
def test_abort_of_this_run_replaces_a_departure(how: DepartureKind, run: int) -> None:
    there, here = Member(), Member()
    there.board.run = 1
    there.board.set_gone(how, "said")
    here.board.run = run
    here.board.set_gone(DepartureKind.LEFT, "known")
    _Pages(here.line, here.board).write(_Pages(there.line, there.board).read(), keep_gone=True)
    aborted = run == 1 and how is DepartureKind.ABORTED
    assert here.board.gone == (Departure(how, "said") if aborted else Departure(DepartureKind.LEFT, "known"))
