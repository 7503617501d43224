"""The two ends of a ring, as Python sees them: tensors go in at a Writer, and come out at a Reader."""

from __future__ import annotations

from collections import deque

import numpy as np

from ..tensors import DTYPE_CODES, DTYPES
from .requests import Message, Send
from .ring import END_WORDS, EndWord, FrameWord, kernels

__all__ = ["Reader", "Writer"]

_DONE = int(EndWord.DONE)
_NBYTES, _TAG, _STAMP, _KIND, _SHAPE = (int(EndWord.HEADER) + int(word) for word in FrameWord)


class _End:
    def __init__(self, ring: int) -> None:
        words = np.zeros(END_WORDS, np.int64)
        words[EndWord.RING], words[EndWord.DONE] = ring, -1
        self.ring = ring
        self._words, self._address = words.data, words.ctypes.data
        self._kernels = kernels()

    @property
    def done(self) -> int:
        """How many bytes of the current payload have gone through; -1 between two frames."""
        done: int = self._words[_DONE]
        return done

    def address_of(self, word: EndWord) -> int:
        """Where a word of this end is."""
        return self._address + 8 * word


class Writer(_End):
    """The sender's end, with what is to be sent, in order."""

    def __init__(self, ring: int) -> None:
        super().__init__(ring)
        self.queue: deque[Send] = deque()

    def put(self, send: Send) -> int:
        """Write what there is room for; 1 when all of it is written."""
        tensor, words = send.tensor, self._words
        if words[_DONE] < 0:
            shape = tensor.shape
            words[_NBYTES], words[_TAG], words[_KIND] = (
                tensor.nbytes,
                send.tag,
                DTYPE_CODES[tensor.dtype] << 8 | len(shape),
            )
            for k, extent in enumerate(shape, _SHAPE):
                words[k] = extent
        return self._kernels.put(self._address, tensor.data_ptr())


class Reader(_End):
    """The receiver's end. message: the one that is being read."""

    def __init__(self, ring: int, source: int) -> None:
        super().__init__(ring)
        self.source = source
        self.message: Message | None = None

    def begin(self) -> Message | None:
        """The next message, by its header, if it has come."""
        if not self._kernels.begin(self._address):
            return None
        words = self._words
        kind = words[_KIND]
        shape = words[_SHAPE : _SHAPE + (kind & 0xFF)].tolist()
        return Message(self.source, words[_TAG], words[_STAMP], DTYPES[kind >> 8], shape, words[_NBYTES])

    def fetch(self, target: int) -> int:
        """Read what has come of the payload to this address, or drop it at 0; 1 when it is complete."""
        return self._kernels.fetch(self._address, target)
