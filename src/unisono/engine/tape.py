"""A tape: copies, combinations and messages at known addresses, as rows of words that compiled code runs.

A row is one of

    COPY                              copy bytes
    COMBINE                           out = first op second
    POST                              the carrier's engine may write a message into its place
    SEND                              the message leaves
    TAKE                              until the message of that POST is there

The last word of a message is the number of its call. A message with another number is of a call that has failed: the
place is posted again. `kernels.replay` runs tapes.
"""

from __future__ import annotations

from enum import IntEnum

ROW_BYTES = 64

COPY, COMBINE, POST, SEND, TAKE = range(5)


class CopyWord(IntEnum):
    """The words of a COPY."""

    TO = 1
    SOURCE = 2
    NBYTES = 3


class CombineWord(IntEnum):
    """The words of a COMBINE; three addresses."""

    OUT = 1
    FIRST = 2
    SECOND = 3
    COUNT = 4  # of elements


class TapeMessageWord(IntEnum):
    """The words of a POST and of a SEND. A TAKE has MARK only: the address of the row of its POST."""

    MARK = 1  # the address of the message's last word
    PLACE = 2
    NBYTES = 3
    TAG = 4
    ENDPOINT = 5  # of a SEND
    REQUEST = 6  # the engine's, while the message is under way; else 0


class TapeWord(IntEnum):
    """The words of a tape."""

    AT = 0  # the address of the row that comes next
    FIRST = 1  # the address of the first row
    END = 2  # the address behind the last row
    NUMBER = 3  # of the call
    KERNEL = 4  # the address of the combine kernel
    ENGINE = 5  # the address of the words of an `EngineWord` each
    SENDING = 6  # the messages that the engine may still read, once all rows are done
    STATUS = 7  # the engine's, of the message that is lost


class EngineWord(IntEnum):
    """Words about a carrier's engine: addresses of its functions and what they take; a number of the engine's for each
    answer that it may give.
    """

    PROGRESS = 0
    ENGINE = 1
    ARM = 2
    DESCRIPTOR = 3
    STATUS = 4
    UNDER_WAY = 5  # the status of a message that is not over
    SEND = 6
    RECEIVE = 7
    FREE = 8
    HOW = 9
    FIRST_ERROR = 10  # a request from here up to -1 is the status of a message that could not begin
