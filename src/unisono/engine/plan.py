"""A plan: a program bound to dtype, op and sizes, in the form that the kernel takes.

Long tensors flow through the staging area in segments; a segment is the same slice of every block that the user sees,
cut into the chunks of the table. Short ones go in one segment, with the signature in the same cache line as the payload
where the program allows it (a tag).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..config import Config
from ..errors import AlgorithmError
from ..records import CallRecord, digest
from .program import PlanWord, Program, TagWord

__all__ = ["Blocks", "Plan", "bind"]

_LINE = 64
_SMALLEST_SLOT = 4096


class Blocks(NamedTuple):
    """The blocks of a call: `length` elements each, of `item` bytes.

    extents: the elements of each block (all_to_all: of each pair of ranks), where they differ; then `length` is the
    most of them. in_list, out_list: do the addresses of input and output lead to tables of block addresses?
    """

    length: int
    item: int
    extents: tuple[int, ...] | None = None
    in_list: bool = False
    out_list: bool = False


@dataclass(frozen=True, eq=False)
class Plan:
    """What `interpret.run` needs. address: of `words`, which refer to the arrays in `kept`; all live as long.

    record: the call, for messages. writes: does this rank get anything into its output? why: the reason for its
    algorithm.
    """

    address: int
    record: CallRecord
    words: npt.NDArray[np.int64]
    kept: tuple[npt.NDArray[np.int64], ...]
    signature: int
    gate_row: int
    writes: bool = True
    why: str = ""

    @property
    def nbytes(self) -> int:
        """The bytes of a block, of the largest where they differ."""
        return int(self.words[PlanWord.TOTAL] * self.words[PlanWord.ITEM])

    @property
    def tag(self) -> bool:
        """Does the signature stand in front of the payload?"""
        return bool(self.words[PlanWord.TAG])


def bind(
    program: Program,
    record: CallRecord,
    blocks: Blocks,
    kernels: tuple[int, int],
    half: int,
    config: Config,
) -> Plan:
    """The plan for these blocks.

    record: the call; ranks whose records, tables, blocks or configurations differ do not run together. kernels: the
    addresses of those for partial and for complete results. half: bytes of a staging half.
    """
    count, item = blocks.length, blocks.item
    record = record._replace(algorithm=program.name, lowering=str(program.lowering))
    # Whether a rank passes lists or one tensor is its own affair, and not part of the agreement.
    agreed = record, program.table, count, item, blocks.extents, config.segment_bytes, config.tag_bytes
    align = max(1, _LINE // item)
    chunk, segments = count, 1
    if program.slots:
        room = (half - _LINE) // program.slots // 128 * 128 - _LINE
        if room < _LINE:
            raise AlgorithmError(
                f"{record}: {program.slots} staging slots do not fit into {half} bytes: use larger segments"
            )
        most = min(room, max(_SMALLEST_SLOT, config.segment_bytes // program.slots // 128 * 128)) // item
        segments = max(1, -(-count // (most // align * align * program.per_block)))
        chunk = -(-count // (segments * program.per_block))
    chunk = -(-max(1, chunk) // align) * align
    tag = program.one_post and segments == 1 and count * item * program.slots <= config.tag_bytes
    rows, refs = np.ascontiguousarray(program.rows), np.ascontiguousarray(program.refs)
    extents = np.array(() if blocks.extents is None else blocks.extents, np.int64)
    words = np.zeros(PlanWord.WORDS, np.int64)
    words[PlanWord.NROWS] = len(rows)
    words[PlanWord.ROWS] = rows.ctypes.data
    words[PlanWord.REFS] = refs.ctypes.data
    words[PlanWord.TOTAL] = count
    words[PlanWord.PIECE] = chunk
    words[PlanWord.PER_BLOCK] = program.per_block
    words[PlanWord.ITEM] = item
    words[PlanWord.ALIGN] = align
    words[PlanWord.COMBINE], words[PlanWord.FINISH] = kernels
    words[PlanWord.SLOT_BYTES] = -(-chunk * item // _LINE) * _LINE + (0 if tag else _LINE)
    words[PlanWord.TAG] = tag
    words[PlanWord.BASE] = 8 * TagWord.WORDS if tag else _LINE
    words[PlanWord.READERS] = program.reader_flags.ctypes.data if program.readers else 0
    words[PlanWord.SIGNATURE] = signature = np.uint64(digest(*agreed) or 1).astype(np.int64)
    words[PlanWord.GATE_STEP] = program.gate_step
    words[PlanWord.SHARED] = program.lowering.zero_copy
    words[PlanWord.IN_LIST], words[PlanWord.OUT_LIST] = blocks.in_list, blocks.out_list
    words[PlanWord.EXTENTS] = 0 if blocks.extents is None else extents.ctypes.data
    return Plan(words.ctypes.data, record, words, (rows, refs, extents), int(signature), program.gate_row)
