"""What a sentinel has written down: the next process reads it, whenever the one before was killed."""

import os
from contextlib import closing

import pytest

from unisono.hosts.sentinel.estate import Estate, turns_of

pytestmark = pytest.mark.quick
SETUP = {"hosts": [[0], [1]], "names": ["a", "b"]}


def test_next_process_reads_what_was_written_last(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Estate.create(SETUP)) as written, closing(Estate(os.dup(written.fd))) as read:
        assert read.setup == SETUP
        assert read.read() is None
        for state in ("long" * 10_000, "short", "", "longer" * 20_000):
            written.write([state])
            assert read.read() == [state]
        write = os.pwrite
        with monkeypatch.context() as killed:  # in the middle of a state
            killed.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:7], at) and 1 / 0)
            with pytest.raises(ZeroDivisionError):
                written.write("never")
        assert read.read() == ["longer" * 20_000]
        written.turns[0], written.highest[1] = 5, 9
        assert (turns_of(read.fd), [*read.highest]) == (5, [0, 9])
        assert os.fstat(written.fd).st_blocks * 512 < 1 << 20
