"""The form of a compiled program, and the layouts of words that the kernel and Python share.

A program has rows and refs. A row is one of

    WAIT   rank step                    until that rank has posted that step of this segment
    GATE                                until every rank has entered this call with the same signature
    MOVE   sub, inputs -> outputs       copy one input, or combine several, into all outputs; may post a step
    SEND   sub, rank, slot              a staging slot leaves for a rank of another host
    RECV   sub, rank, slot              until what that rank has sent is in a staging slot of this one; may post a step

A ref is a symbolic address, (where, rank, block, sub): the chunk number `sub` of a block in the input or the output of
a rank, or a staging slot of the rank. It contains no sizes; the plan has them.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

Words = np.ndarray[Any, np.dtype[np.int64]]
"""What `numpy.typing.NDArray` is; to import that takes a millisecond."""

IN, OUT, STAGE = 0, 1, 2
"""Where a ref points: the user's input, the user's output, a staging slot."""

STEP_BITS = 12
"""A progress word is segment << STEP_BITS | step: one monotone number per rank, with one writer."""

ROW_WORDS = 8

ROW_BYTES, REF_BYTES, LINE_BYTES, CACHE_LINE = 64, 32, 128, 64
"""Bytes of a row, of a ref, of a control line (`memory.board.LINE`) and of a line of the processor's caches."""

DONE, WAITING, DISAGREE, FAILED, LOST, STAGED = 0, 1, 2, 3, 4, 5
"""What the kernel returns: DONE; WAITING | rank << 8: that rank is late; DISAGREE | rank << 8: it made another call;
FAILED | rank << 8 | errno << 32: the system has refused an access to that rank's tensors; STAGED | rank << 8: that rank
stages the call, so all do; LOST | rank << 8: the call has failed, because the connection to that rank is lost, or, if
it is the caller, of itself.
"""

NO_PLAN = -1
"""What kernels/known returns in place of a status, or of a plan, where none can run."""

MAPPED, CROSSED = 1, 2
"""How peers reach a rank's tensors: by addresses in memory that all have mapped, or by system calls. 0: not at all, the
call is staged.
"""

REACH = 3
"""The bits of a signature that tell how peers reach the rank's tensors. All other bits are equal on all ranks."""

TILE_BYTES = 16 << 10
"""Bytes that are combined at a time, then copied to the other outputs while they are in the first-level cache."""

ROOM = 512 << 10
"""Bytes for inputs that system calls bring from peers: a part of the second-level cache."""

LEARNED_WORDS = 3
"""The memory of a waiting loop: the present number of spins, the cycle when a yield of a time slice last ended, and the
cycle until which to sleep instead of yielding.
"""

PATIENCE_NS = 1_000_000
"""A rank that has waited for longer yields no more: it sleeps until a writer wakes it."""

IN_TIME, AT_ONCE = 1, 2
"""A rank sleeps when it has waited for PATIENCE_NS, or from the start: see kernels/waiting."""

FAR_HALF = 2 << 20
"""The bytes of a staging half that calls over hosts use: the same on all hosts, whatever their settings."""

BRISK_BYTES = 32 << 10
"""Where ranks and processes that compute share processors, a yield costs a rank its claim to its processor for a time
slice, and a rank that sleeps keeps it. So in calls over hosts on longer blocks, ranks that outnumber processors sleep
at once. In shorter calls they yield first, because a wake-up takes longer than a yield.
"""

LOOK_UPS, LOOK_UP_SHARE = 10, 30
"""A rank that has waited for long looks at its peers after a thirtieth of its wait, at most ten times as late as at
first: a look takes some 0.3 ms of a processor.
"""


class Op(IntEnum):
    """The kind of a row."""

    WAIT = 0
    MOVE = 1
    GATE = 2
    SEND = 3
    RECV = 4


class RowWord(IntEnum):
    """The words of a row. A WAIT has RANK and STEP; a GATE has POST. A SEND and a RECV have SUB, PEER, SLOT, MESSAGE,
    POST, EMPTY and COUNT_INDEX.
    """

    OP = 0
    RANK = 1
    STEP = 2
    SUB = 1
    NIN = 2
    FIRST_REF = 3  # the refs of the inputs, then of the outputs
    NOUT = 4
    POST = 5
    LAST = 6  # 1: this combine completes a result
    COUNT_INDEX = 7  # which of the counts of blocks is its own, if they differ
    PEER = 2
    SLOT = 3
    MESSAGE = 4  # the number of the message: a part of its tag
    EMPTY = 6  # 1: it has no bytes, and is sent in the first segment only


class RefWord(IntEnum):
    """The words of a ref. In the staging area BLOCK is the slot."""

    WHERE = 0
    RANK = 1
    BLOCK = 2
    SUB = 3


class PlanWord(IntEnum):
    """The words of a plan: a program bound to dtype, op and sizes."""

    NROWS = 0
    ROWS = 1  # address
    REFS = 2  # address
    TOTAL = 3  # elements of a block; of the largest if they differ
    CHUNK = 4  # elements of a chunk in a full segment
    PER_BLOCK = 5  # chunks of a block
    ITEM = 6  # bytes of an element
    ALIGN = 7  # elements to which a short segment's chunks are rounded
    COMBINE = 8  # address of the kernel for partial results
    FINISH = 9  # address of the kernel that completes a result
    SLOT_BYTES = 10
    INLINE = 11  # 1: signature and payload share a line; 2: the control line has the signature, too
    BASE = 12  # where slots begin in a staging half
    READERS = 13  # address of the flags, one per rank: does it read this rank's staging area?
    SIGNATURE = 14  # 64 bits that all ranks must agree on, never 0
    GATE_STEP = 15
    SHARED = 16  # how peers reach this rank's tensors: MAPPED or CROSSED; 0: not at all
    IN_LIST = 17  # 1: the input argument is a table of block addresses
    OUT_LIST = 18
    COUNTS = 19  # address of the elements of each block; 0: all have TOTAL
    NOTE = 20  # the number of the note that says what this plan is: see plan_registry
    LANES = 21  # the threads that share a long move
    LANE_BYTES = 22  # the least bytes of a lane's piece of a move
    REQUESTS = 23  # address of the transport's requests under way, for both staging halves one per row; 0: no messages
    TAGS = 24  # where the tags of its messages begin
    STOP = 25  # the row at which the kernel returns; all rows: it does not
    WORDS = 26


class KnownWord(IntEnum):
    """The words of a table of plans for calls that differ in their tensors only: see kernels/known. Entries follow."""

    HEAP = 0  # where this rank's heap begins
    HEAP_END = 1
    OWN = 2  # the rank whose block of the larger tensor the smaller one may be; -1: none
    MASK = 3  # the number of entries, a power of two, less one
    WORDS = 4


class EntryWord(IntEnum):
    """The words of an entry, which is free while PLAN is 0. The first three are its key."""

    COUNT_IN = 0  # elements of the input
    COUNT_OUT = 1
    KIND = 2  # dtype, and which tensors lie in the heap
    PLAN = 3  # address
    TO_CHECK = 4  # 1: the key does not tell all of such tensors
    WORDS = 5


class LaneWord(IntEnum):
    """The words that the lanes of a rank share, in its private memory: see kernels/lanes. Each group of words that
    change together has two cache lines of its own.
    """

    JOB = 0  # the number of the job, 32 bits; the number of its pieces, 16; how often a lane has tried to take one, 16
    FINISHED = 16  # pieces that are finished, of all jobs
    SLEEPERS = 17  # helpers that sleep, or are about to
    END = 32  # 1: helpers end
    BUSY = 33  # 1: a thread shares a move
    DUE = 34  # the pieces of all jobs up to this one; the words from here on change only while no piece is taken
    PLAN = 35
    ROW = 36
    REFS = 37
    COUNT = 38  # elements of the move
    PIECE = 39  # elements of a piece
    ADDRESSES = 40  # as in StateWord
    STATE = 41
    STATUS = 42  # DONE, or why a piece has failed
    OWN = 43  # where the thread of the call has the addresses of its piece
    WORDS = 48


class LineWord(IntEnum):
    """The words of a control line. "(next: odd)": the next word is the same for calls with an odd number."""

    PROGRESS = 0  # segment << STEP_BITS | step: written by its rank only, never decreasing
    NUMBER = 1  # the number of the call that the rank has entered (next: odd)
    SIGNATURE = 3  # the signature of this call; 0: the rank has refused or withdrawn it (next: odd)
    IN_OFFSET = 5  # where its input lies in its heap, or its address (next: odd)
    OUT_OFFSET = 7  # where its output lies in its heap, or its address (next: odd)
    PID = 9  # its process id, 0 once it has given the group up; this and the words below are written when it joins
    JOINED = 10  # 1: it uses this memory
    STAGES = 11  # 1: it has found that system calls do not reach all tensors
    ASLEEP = 12  # ranks may be asleep until this rank writes to its line or its staging area: see kernels/waiting
    AWAITS_MAIL = 13  # in a world's memory: this rank may be asleep until a message comes, or is taken


class CallWord(IntEnum):
    """The words of an inline call in its staging half, before the payload."""

    NUMBER = 0
    SIGNATURE = 1
    WORDS = 2


class StateWord(IntEnum):
    """The words of a rank's private state in one group."""

    SEGMENT = 0  # number of the next segment, over all calls
    PC = 1  # row to resume at; -1: the segment has not begun
    OFFSET = 2  # elements of each block that are done
    RANKS = 3
    ME = 4
    CONTROL = 5  # address of the control lines
    STAGING = 6  # address of rank 0's staging area
    STAGE_STRIDE = 7
    HALF = 8  # bytes of a staging half
    SPINS = 9  # most pauses before a yield
    LEARNED = 10  # from earlier waits: LEARNED_WORDS words
    SLOW_YIELD_CYCLES = 13  # cycles: a slower yield has let another process run
    LOOK_UP_NS = 14  # longest stay in the kernel without a look from Python, at first: see LOOK_UPS
    CALL = 15  # number of the call, over all calls
    SCRATCH = 16  # address of a block that stays in the first-level cache
    FLOOR = 17  # every rank has posted this step
    READERS_0 = 18  # ranks that may still read the half of even segments: address of flags; 0: none
    READERS_1 = 19
    LOG = 20  # address of the log of calls
    LOG_MASK = 21  # its number of calls, a power of two, less one
    SLEEPS = 22  # when a rank that waits sleeps until a writer wakes it: IN_TIME or AT_ONCE
    WAITED_NS = 23  # how long the present wait has taken before the kernel last returned
    LANES = 24  # address of the words that the lanes of this rank share
    TENSORS = 25  # address of the addresses of each rank's input and output, if peers reach them
    HEAPS = 26  # address of the addresses of each rank's heap
    ADDRESSES = 27  # address of the addresses of a move's inputs, then of its outputs
    TRANSPORT = 28  # address of the words of a `TransportWord` each; 0: all ranks are on this host
    PEERS = 29  # address of a `PeerWord` table: what the transport needs to reach each rank
    HERE = 30  # address of flags, one per rank: is it on this host? 0: all are
    SENDING = 31  # messages that this rank has sent and that have not left
    LOST = 32  # the transport's status of a message that is lost
    NEWS = 33  # address of a word that others count up when there is urgent news
    SEEN = 34  # address of what it was when this rank has looked last
    WORDS = 35


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
    SLOW_YIELD_CYCLES = 11  # as in StateWord
    SLICES = 12  # the second and the third of LEARNED_WORDS, of waits for the transport
    WORDS = 14


class PeerWord(IntEnum):
    """The words of a rank for the transport."""

    ENDPOINT = 0
    OUT = 1  # the bits of the tags of messages to it that say from whom to whom
    IN = 2  # the same for messages from it
    WORDS = 3


class Lowering(NamedTuple):
    """How a table becomes programs.

    zero_copy: peers reach the tensors.
    in_place: input and output are one.
    cross_memory: peers reach them by system calls, because the tensors are private.
    """

    zero_copy: bool = False
    in_place: bool = False
    cross_memory: bool = False

    def __str__(self) -> str:
        how = "cross memory" if self.cross_memory else "zero copy" if self.zero_copy else "staged"
        return how + (", in place" if self.in_place else "")


class Program(NamedTuple):
    """The program of one rank.

    name, table: the name of the schedule, and its digest.
    readers: the ranks that read this rank's staging area.
    reader_flags: the same for the kernel, one flag per rank. It reads them after the call, too.
    slots: the staging slots of the rank that needs most.
    one_post: ranks wait for no step after the gate, so signature and payload can share a cache line.
    one_way: some ranks only stage, others only read, as in a broadcast.
    gate_row: the row after which all ranks have entered the call.
    spans: are there ranks on other hosts?
    """

    name: str
    table: int
    lowering: Lowering
    ranks: int
    rows: Words
    refs: Words
    readers: frozenset[int]
    reader_flags: Words
    slots: int
    gate_step: int
    blocks: int
    per_block: int
    one_post: bool
    one_way: bool
    gate_row: int
    spans: bool
