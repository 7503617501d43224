"""A plan: a program bound to dtype, op and sizes, in the form that the kernel takes.

Long tensors pass through the staging area in segments. Short tensors are one segment; if the program allows it,
signature and payload then share a cache line: the call is inline, see `CallWord`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...base.config import Config
from ...base.errors import AlgorithmError
from ...base.records import CallRecord, digest
from ...schedule.choose import always_staged
from .program import CACHE_LINE, CROSSED, FAR_HALF, MAPPED, REACH, CallWord, PlanWord, Program, Words

_SMALLEST_SLOT = 4096
_LANE_BYTES = 32 << 10  # the least that a lane takes at a time: it takes some microseconds to copy this
_SEGMENTS, _ONE_WAY_BYTES = 8, 128 << 10
"""The segments of a call in which some ranks stage what other ranks read: readers idle while the first is staged. There
are fewer if segments would be shorter than _ONE_WAY_BYTES, as they are written where others have just read; but at
least two: each has its own staging half.
"""


class Blocks(NamedTuple):
    """The blocks of a call: `length` elements each, of `item` bytes.

    counts: the elements of each block (all_to_all: of each pair of ranks) if they differ; then `length` is the most.
    in_list: is the address of the input the address of a table of block addresses?
    out_list: the same for the output.
    """

    length: int
    item: int
    counts: tuple[int, ...] | None = None
    in_list: bool = False
    out_list: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """What `interpret.run` needs for equal calls.

    address: the address of `words`, which point into the arrays of `kept`.
    program: the program that is bound.
    record: the call, for messages.
    nbytes: bytes of a block; of the largest block if they differ.
    signature: what all ranks must agree on, as 64 bits.
    inline: do signature and payload share a cache line?
    writes: does the call write this rank's output?
    patience_ns: how long an asynchronous call waits for a peer on the caller's thread.
    why: the reason for the algorithm.
    note: the number of the note in the log of calls.
    """

    address: int
    words: Words
    kept: tuple[Words, ...]
    program: Program
    record: CallRecord
    nbytes: int
    signature: int
    inline: bool = False
    writes: bool = True
    patience_ns: int = 0
    why: str = ""
    note: int = 0


def shared_signature(*agreed: object) -> int:
    """A digest of what all ranks agree on, as a signed word without the bits of REACH; never 0."""
    return int(np.uint64(digest(*agreed) & ~REACH or REACH + 1).astype(np.int64))


def bind(
    program: Program, record: CallRecord, blocks: Blocks, kernels: tuple[int, int], half: int, config: Config
) -> Plan:
    """The plan for these blocks.

    record: the call. The signature covers record, table, blocks and the settings that shape programs.
    kernels: the addresses of the kernels for partial and for complete results.
    half: bytes of a staging half.
    """
    count, item = blocks.length, blocks.item
    record = record._replace(algorithm=program.name, lowering=str(program.lowering))
    # Ranks may differ in whether they pass lists or one tensor, and in how peers reach their tensors.
    shaping = program.lowering.in_place, *(() if program.spans else (config.segment_bytes, config.inline_bytes))
    half = FAR_HALF if program.spans else half
    agreed = record._replace(lowering=""), program.table, count, item, blocks.counts, *shaping
    align = max(1, CACHE_LINE // item)
    chunk, segments = count, 1
    if program.slots:
        room = (half - CACHE_LINE) // program.slots // 128 * 128 - CACHE_LINE
        if room < CACHE_LINE:
            raise AlgorithmError(
                f"{record}: {program.slots} staging slots do not fit into {half} bytes. Set UNISONO_SEGMENT_BYTES to "
                "more."
            )
        segment = config.segment_bytes
        staged = count * item * program.slots // program.per_block
        if program.one_way and staged > config.inline_bytes:
            segment = min(segment, max(staged // _SEGMENTS, min(staged // 2, _ONE_WAY_BYTES)))
        most = room if program.spans else min(room, max(_SMALLEST_SLOT, segment // program.slots // 128 * 128))
        most //= item
        segments = max(1, -(-count // (most // align * align * program.per_block)))
        chunk = -(-count // (segments * program.per_block))
    chunk = -(-max(1, chunk) // align) * align
    inline = program.one_post and segments == 1 and count * item * program.slots <= config.inline_bytes
    rows, refs = np.ascontiguousarray(program.rows), np.ascontiguousarray(program.refs)
    requests = np.zeros(2 * len(rows) if program.spans else 0, np.int64)
    counts = np.array(() if blocks.counts is None else blocks.counts, np.int64)
    words = np.zeros(PlanWord.WORDS, np.int64)
    words[PlanWord.NROWS] = words[PlanWord.STOP] = len(rows)
    words[PlanWord.ROWS] = rows.ctypes.data
    words[PlanWord.REFS] = refs.ctypes.data
    words[PlanWord.TOTAL] = count
    words[PlanWord.CHUNK] = chunk
    words[PlanWord.PER_BLOCK] = program.per_block
    words[PlanWord.ITEM] = item
    words[PlanWord.ALIGN] = align
    words[PlanWord.COMBINE], words[PlanWord.FINISH] = kernels
    words[PlanWord.SLOT_BYTES] = -(-chunk * item // CACHE_LINE) * CACHE_LINE + (0 if inline else CACHE_LINE)
    words[PlanWord.INLINE] = inline << (not always_staged(count * item * program.blocks, program.ranks, config))
    words[PlanWord.BASE] = 8 * CallWord.WORDS if inline else CACHE_LINE
    words[PlanWord.READERS] = program.reader_flags.ctypes.data if program.readers else 0
    reach = 0 if not program.lowering.zero_copy else CROSSED if program.lowering.cross_memory else MAPPED
    signature = shared_signature(*agreed)
    words[PlanWord.SIGNATURE], words[PlanWord.SHARED] = signature | reach, reach
    words[PlanWord.GATE_STEP] = program.gate_step
    words[PlanWord.IN_LIST], words[PlanWord.OUT_LIST] = blocks.in_list, blocks.out_list
    words[PlanWord.LANES], words[PlanWord.LANE_BYTES] = 1, min(_LANE_BYTES, max(CACHE_LINE, config.lane_bytes))
    words[PlanWord.COUNTS] = 0 if blocks.counts is None else counts.ctypes.data
    words[PlanWord.REQUESTS] = requests.ctypes.data if program.spans else 0
    return Plan(
        address=words.ctypes.data, words=words, kept=(rows, refs, counts, requests), program=program, record=record,
        nbytes=count * item, signature=signature, inline=inline,
    )  # fmt: skip
