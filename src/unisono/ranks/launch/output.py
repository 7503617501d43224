"""Where ranks print: into the file of the parent's stream, or by a pipe that the parent empties."""

import codecs
import io
import os
import sys
import weakref
from contextlib import suppress

_PIPE_BYTES = 1 << 20  # more than a pipe holds: one read empties the pipe


class RankOutput:
    """Where ranks' `stdout` or `stderr` goes.

    If the parent's stream has a file behind it (terminal, redirection), the ranks write to that file. If it has none
    (notebook, captured by a test), or where lines get a prefix, the ranks write to a pipe, and the thread that waits
    for the ranks forwards whole lines.
    """

    def __init__(self, name: str, prefix: str = "") -> None:
        self._name, self._prefix = name, prefix
        self._pipe: tuple[int, int] | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line = ""

    def hand_out(self) -> int:
        """The file descriptor that ranks should write to from now on."""
        stream = getattr(sys, self._name)
        with suppress(AttributeError, OSError, ValueError):  # there is none, its reader has gone, it has been closed
            stream.flush()
        # Streams of other classes answer fileno() with a file that the user does not see.
        if isinstance(stream, io.TextIOWrapper) and not self._prefix:
            with suppress(OSError, ValueError):  # the stream has only a buffer
                return stream.fileno()
        if self._pipe is None:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[0], False)
            for end in self._pipe:
                weakref.finalize(self, os.close, end)
        return self._pipe[1]

    @property
    def pipe_end(self) -> int | None:
        """The descriptor to watch for output to forward, or None."""
        return self._pipe[0] if self._pipe else None

    def forward(self) -> None:
        """Print the whole lines that have arrived."""
        self._line += self._read()
        lines, newline, self._line = self._line.rpartition("\n")
        self._print(lines + newline)

    def finish(self) -> None:
        """Print all that has arrived."""
        self._line += self._read()
        if self._prefix and self._line and not self._line.endswith("\n"):
            self._line += "\n"  # the next text belongs to another rank
        self._print(self._line)
        self._line = ""

    def _read(self) -> str:
        if self._pipe is None:
            return ""
        try:
            return self._decoder.decode(os.read(self._pipe[0], _PIPE_BYTES))
        except BlockingIOError:
            return ""

    def _print(self, text: str) -> None:
        if text and self._prefix:
            text = self._prefix + text[:-1].replace("\n", f"\n{self._prefix}") + "\n"
        if text:
            with suppress(AttributeError, OSError, ValueError):  # as above: the text has no reader
                stream = getattr(sys, self._name)
                stream.write(text)
                stream.flush()
