"""A program bound to sizes: the plan that the kernel takes.

Long tensors flow through the staging area in segments; a segment is the same slice of every block that the user sees,
cut into the chunks of the table. Short ones go in one segment, with the signature in the same cache line as the payload
where the program allows it (a tag).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import AlgorithmError
from .program import PlanWord, Program

__all__ = ["Plan", "bind"]

_LINE = 64
_SMALLEST_SLOT = 4096


@dataclass(frozen=True, eq=False)
class Plan:
    """What `interpret.run` needs. The address is of `words`, which refer to the other arrays; they live as long."""

    address: int
    call: str
    details: str
    words: npt.NDArray[np.int64]
    kept: tuple[npt.NDArray[np.int64], ...]
    signature: int
    gate_row: int

    @property
    def tag(self) -> bool:
        """Does the signature stand in front of the payload?"""
        return bool(self.words[PlanWord.TAG])


def bind(
    program: Program,
    *,
    count: int,
    item: int,
    combine: tuple[int, int],
    half: int,
    segment_bytes: int,
    tag_bytes: int,
    signature: int,
    call: str,
    details: str,
    shared: bool,
    lists: tuple[bool, bool],
    extents: npt.NDArray[np.int64] | None = None,
) -> Plan:
    """The plan for blocks of `count` elements of `item` bytes.

    combine: addresses of the kernels for partial and complete results. half: bytes of a staging half. call, details:
    the call in words, for messages. lists: whether input and output are tables of block addresses. extents: the
    elements of each block, where they differ; then `count` is the most of them, and tensors come as tables of blocks.
    """
    align = max(1, _LINE // item)
    chunk, segments = count, 1
    if program.slots:
        room = (half - _LINE) // program.slots // 128 * 128 - _LINE
        if room < _LINE:
            raise AlgorithmError(
                f"{call}: {program.slots} staging slots do not fit into {half} bytes: use larger segments"
            )
        most = min(room, max(_SMALLEST_SLOT, segment_bytes // program.slots // 128 * 128)) // item // align * align
        segments = max(1, -(-count // (most * program.per_block)))
        chunk = -(-count // (segments * program.per_block))
    chunk = -(-max(1, chunk) // align) * align
    tag = program.one_post and segments == 1 and count * item * program.slots <= tag_bytes
    rows, refs = np.ascontiguousarray(program.rows), np.ascontiguousarray(program.refs)
    words = np.zeros(PlanWord.WORDS, np.int64)
    words[PlanWord.NROWS] = len(rows)
    words[PlanWord.ROWS] = rows.ctypes.data
    words[PlanWord.REFS] = refs.ctypes.data
    words[PlanWord.TOTAL] = count
    words[PlanWord.PIECE] = chunk
    words[PlanWord.PER_BLOCK] = program.per_block
    words[PlanWord.ITEM] = item
    words[PlanWord.ALIGN] = align
    words[PlanWord.COMBINE], words[PlanWord.FINISH] = combine
    words[PlanWord.SLOT_BYTES] = -(-chunk * item // _LINE) * _LINE + (0 if tag else _LINE)
    words[PlanWord.TAG] = tag
    words[PlanWord.BASE] = 8 if tag else _LINE
    words[PlanWord.READERS] = program.reader_flags.ctypes.data if program.readers else 0
    words[PlanWord.SIGNATURE] = signature
    words[PlanWord.GATE_STEP] = program.gate_step
    words[PlanWord.SHARED] = shared
    words[PlanWord.IN_LIST], words[PlanWord.OUT_LIST] = lists
    kept: tuple[npt.NDArray[np.int64], ...] = (rows, refs)
    if extents is not None:
        extents = np.ascontiguousarray(extents, np.int64)
        words[PlanWord.EXTENTS] = extents.ctypes.data
        kept += (extents,)
    return Plan(words.ctypes.data, call, details, words, kept, signature, program.gate_row)
