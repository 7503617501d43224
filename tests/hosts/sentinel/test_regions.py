"""Line and board of a rank on another host are copied together: a rank that has gone has ended its last call."""

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


class Interrupted(Board):
    """A board whose owner ends its call and leaves while it is read; and which sees the line at each copy."""

    def __init__(self, member: Member) -> None:
        super().__init__(member.page)
        self._member, self._left = member, False
        self.seen: list[tuple[bool, int]] = []

    def image(self) -> bytes:
        if not self._left:
            self._left = True
            self._member.end_and_leave()
        return super().image()

    def copy(self, image: bytes, *, keep_gone: bool = False) -> None:
        super().copy(image, keep_gone=keep_gone)
        self.seen.append((self.gone is not None, self._member.line.cast("q")[0]))


def test_a_member_is_read_as_it_was_at_one_moment() -> None:
    member = Member()
    image = _Pages(member.line, Interrupted(member)).read()
    assert Board(memoryview(image[LINE:])).gone is not None
    assert memoryview(image[:LINE]).cast("q")[0] == 4096


def test_that_a_rank_has_gone_is_written_behind_the_end_of_its_call() -> None:
    there, here = Member(), Member()
    there.end_and_leave()
    board = Interrupted(here)
    _Pages(here.line, board).write(_Pages(there.line, there.board).read(), keep_gone=False)
    assert board.seen == [(False, 0), (True, 4096)]


@pytest.mark.parametrize("how", DepartureKind)
@pytest.mark.parametrize("run", [1, 2])
def test_of_what_is_said_before_a_known_departure_an_abort_in_this_run_counts(how: DepartureKind, run: int) -> None:
    there, here = Member(), Member()
    there.board.begin_run(1)
    there.board.set_gone(how, "said")
    here.board.begin_run(run)
    here.board.set_gone(DepartureKind.LEFT, "known")
    _Pages(here.line, here.board).write(_Pages(there.line, there.board).read(), keep_gone=True)
    aborted = run == 1 and how is DepartureKind.ABORTED
    assert here.board.gone == (Departure(how, "said") if aborted else Departure(DepartureKind.LEFT, "known"))
