"""A tape: copies, combinations and messages at known addresses, as rows of words that compiled code runs.

A row is one of

    COPY                              copy bytes
    COMBINE                           out = first op second
    POST                              the carrier's engine may write a payload into its place
    SEND                              the payload leaves
    TAKE                              until the message of these POSTs is there

A message is one payload, or some. Its last word tells that it is there. If this word is no part of the data, it is the
number of the call. A message with another number is of a call that has failed: the places are posted again.

`kernels.replay` runs tapes. Where only Python code can call the carrier's engine, it stops at messages: CARRIER. With
other engines, it stops so where the word of a message has come before all of it.
"""

from __future__ import annotations

from enum import IntEnum

ROW_BYTES = 64

COPY, COMBINE, POST, SEND, TAKE = range(5)

STEP = 7
"""The last word of each row: the step of the program whose part it is, as logs count them."""

CARRIER = 5
"""The status of a tape that has stopped at a message, for Python code to call the carrier."""


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
    """The words of a POST and of a SEND."""

    MARK = 1  # the address of the message's last word, if this row changes it; else 0
    PLACE = 2
    NBYTES = 3
    TAG = 4  # if Python code calls the engine: the address of a word that is 1 if a POST has nothing to do; 0: it has
    TO = 5  # of a SEND: the endpoint; of a POST: what MARK is until the message is there
    REQUEST = 6  # the engine's, while the payload is under way; else 0


class TapeTakeWord(IntEnum):
    """The words of a TAKE."""

    MARK = 1  # the address of the message's last word
    MISSING = 2  # what it is until the message is there; 0: then it is the number of the call
    POSTS = 3  # bytes from the tape's first row to the message's first POST; the others follow
    COUNT = 4  # of its POSTs


class TapeWord(IntEnum):
    """The words of a tape."""

    AT = 0  # the address of the row that comes next
    FIRST = 1  # the address of the first row
    END = 2  # the address behind the last row
    NUMBER = 3  # of the call
    KERNEL = 4  # the address of the combine kernel
    ENGINE = 5  # the address of the words of an `EngineWord` each; 0: only Python code calls the engine
    SENDING = 6  # the messages that the engine may still read, once all rows are done
    STATUS = 7  # the engine's, of the message that is lost
    STATE = 8  # the address of the words of a `StateWord` each, where rows are logged; 0: they are not
    SEGMENT = 9  # of the call, for the log


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
