"""A tape: a call as rows of words that compiled code runs, one behind the other, at known addresses.

A row is one of

    COPY                              copy bytes; also from the user's input, and to the output
    COMBINE                           out = first op second; without a second, out = the complete result `first`
    POST                              the carrier's transport may write a payload into its place
    SEND                              the payload leaves
    TAKE                              until the message of these POSTs is there
    LEFT                              until the payloads that leave straight from places have left
    RUN                               a program of the ranks of this host
    MEET                              tell ranks of this host how far this one is; until one of them is as far
    LEAVE                             tell them that this rank has ended the call

A message is one payload, or some. Its last word tells that it is there. If this word is no part of the data, it is the
number of the call. A message with another number is of a call that has failed: the places are posted again.

`kernels.replay` runs tapes. It stops at rows where Python code has to do its part, SERVE: at LEFT; where the word of a
message has come before all of it; at RUN and MEET while payloads are under way that only this thread moves. Ranks of
this host may wait for other hosts, which wait for these payloads.
"""

from __future__ import annotations

from enum import IntEnum

ROW_BYTES = 64

COPY, COMBINE, POST, SEND, TAKE, LEFT, RUN, MEET, LEAVE = range(9)

SERVE = 5
"""The status of a tape that has stopped at a row for Python code to do its part."""


class CopyWord(IntEnum):
    """The words of a COPY."""

    TO = 1
    SOURCE = 2
    NBYTES = 3
    OF = 4  # `TapeWord.IN`: SOURCE counts from this tensor; `TapeWord.OUT`: TO does; 0: both are addresses
    BLOCK = 5  # the number of the tensor in a list, from 1; 0: the input or output is no list


class CombineWord(IntEnum):
    """The words of a COMBINE; three addresses."""

    OUT = 1
    FIRST = 2
    SECOND = 3  # 0: there is none
    COUNT = 4  # of elements
    KERNEL = 5  # the address of the combine kernel
    RANKS = 6  # by whose number an average divides a complete result


class TapeMessageWord(IntEnum):
    """The words of a POST and of a SEND."""

    MARK = 1  # the address of the message's last word, if this row changes it; else 0
    PLACE = 2
    NBYTES = 3
    TAG = 4  # the transport's
    TO = 5  # of a SEND: the endpoint; of a POST: what MARK is until the message is there
    REQUEST = 6  # the transport's, while the payload is under way; else 0


class TapeTakeWord(IntEnum):
    """The words of a TAKE."""

    MARK = 1  # the address of the message's last word
    MISSING = 2  # the address of what it is until the message is there; if that is 0, it is then the number of the call
    POSTS = 3  # bytes from the tape's first row to the message's first POST; the others follow
    COUNT = 4  # of its POSTs


class TapeLeftWord(IntEnum):
    """The words of a LEFT."""

    PIECE = 1  # of the vector, whose payloads are meant; -1: all


class RunWord(IntEnum):
    """The words of a RUN."""

    PROGRAM = 1  # its number among the programs of the tape
    ARGUMENTS = 2  # the address of what the interpreter takes: plan, input, output and state


class MeetWord(IntEnum):
    """The words of a MEET. Words of control lines are those of a `LineWord`."""

    TELLS = 1  # the word of this rank's line that becomes the number of the call; -1: none
    RANK = 2  # the rank of the group that is waited for; -1: none
    WORD = 3  # the word of its line that must be at least the number of the call
    SIGNATURE = 4  # of the call that this rank enters, and that the other one must have entered; 0: none
    NOTE = 5  # of this call, for the log
    PASSES = 6  # 1: every rank has entered the call


class TapeWord(IntEnum):
    """The words of a tape."""

    AT = 0  # the address of the row that comes next
    FIRST = 1  # the address of the first row
    END = 2  # the address behind the last row
    NUMBER = 3  # of the call
    TRANSPORT = 4  # the address of the words of a `TransportWord` each
    SENDING = 5  # payloads under way that only this thread moves, once it is done
    STATUS = 6  # the transport's, of the message that is lost
    STATE = 7  # the address of the rank's state, which says how long to wait; 0: there is none
    NEWS = 8  # the address of a word that others count up, which ends a wait
    SEEN = 9  # the address of what it was when this rank looked last; before a LEAVE, it looks at any other
    IN = 10  # the address of the user's input, or of a table with the addresses of a list
    OUT = 11  # the same for the output


class TransportWord(IntEnum):
    """Words about a carrier's transport: addresses of its functions and what they take; a number of the transport's for
    each answer that it may give.
    """

    PROGRESS = 0
    WORKER = 1
    ARM = 2
    DESCRIPTOR = 3
    STATUS = 4
    UNDER_WAY = 5  # the status of a message that is not over
    SEND = 6
    RECEIVE = 7
    FREE = 8
    HOW = 9
    FIRST_ERROR = 10  # a request from here up to -1 is the status of a message that could not begin
