"""Where an exchange logs its steps, and what they are, for traces."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from ...engine.compile.program import Op
from ...engine.logs.plan_registry import ProgramRow
from .message_program import MOVE, POST, SEND, TAKE, MessageProgram, Piece


class LogsRows(Protocol):
    """A rank. logged_state: see `Host`."""

    logged_state: int


class Journal(NamedTuple):
    """Where an exchange logs its steps.

    host: has the log. Each run asks it anew.
    segment: the piece of the vector.
    first: the number of the first step in the call.
    """

    host: LogsRows
    segment: int
    first: int


def journal_rows(program: MessageProgram, members: Sequence[int]) -> Iterator[ProgramRow]:
    """The steps of a program in the form of a note. members: of the table, as ranks of the group."""
    me = members[program.rank]
    for kind, round_, numbers in program.steps():
        if kind == MOVE:
            read = {source for number in numbers for source in program.writings[number].sources}
            ranks = {members[program.messages[s.message].peer] if isinstance(s, Piece) else me for s in read}
            yield ProgramRow(round_, Op.MOVE, tuple(sorted(ranks)), (me,))
            continue
        peer = members[program.messages[numbers[0]].peer]
        yield {
            POST: ProgramRow(round_, Op.MOVE),
            SEND: ProgramRow(round_, Op.MOVE, (me,), (peer,)),
            TAKE: ProgramRow(round_, Op.WAIT, (peer,)),
        }[kind]
