"""What a process without a group waits for: a page of memory. Processes of the same user find it through /proc.

`unisono doctor` reads it.
"""

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ..process.stacks import answer_with_stacks

_NAME = "unisono-meeting"
_MOST_RANKS, _MOST_BYTES, _MOST_WORDS = 64, 4096, 300


class Waiting(NamedTuple):
    """What a rank waits for before it has a group.

    ranks: the ranks that it waits for, or the first of many.
    what: what these ranks have to do.
    where: the address at which they have to do it, or "".
    since_ns: when this rank began to wait, on the monotonic clock.
    stacks: see `answer_with_stacks`.
    """

    rank: int
    size: int
    ranks: Sequence[int]
    what: str
    where: str
    since_ns: int
    stacks: int


class _Page(threading.local):
    """The page of this thread. number: the number of its file; 0: the thread has none."""

    number = rank = size = stacks = since_ns = 0
    what = ""


_page = _Page()


@contextmanager
def meeting_page(rank: int, size: int) -> Iterator[None]:
    """Keep a page as long as this rank has no group. Within another one, the same page."""
    if _page.number:
        yield
        return
    with suppress(OSError):  # no descriptor is free
        _page.rank, _page.size, _page.stacks = rank, size, answer_with_stacks()
        _page.number = os.memfd_create(_NAME, os.MFD_CLOEXEC)
    try:
        yield
    finally:
        if _page.number:
            os.close(_page.number)
            _page.number, _page.what = 0, ""


def waits(ranks: Sequence[int], what: str, where: str = "") -> None:
    """Say on the page what this rank waits for from now on."""
    if not _page.number:
        return
    if what != _page.what:
        _page.what, _page.since_ns = what, time.monotonic_ns()
    some, what, where = tuple(ranks[:_MOST_RANKS]), what[:_MOST_WORDS], where[:_MOST_WORDS]
    one = Waiting(_page.rank, _page.size, some, what, where, _page.since_ns, _page.stacks)
    os.pwrite(_page.number, json.dumps(one).encode().ljust(_MOST_BYTES), 0)


def _in_child() -> None:
    """A forked child is no rank of this meeting."""
    if _page.number:
        os.close(_page.number)
        _page.number = 0


os.register_at_fork(after_in_child=_in_child)


def waiting_of(pid: int) -> Waiting | None:
    """What another process waits for; None if it has a group, or is no rank, or belongs to another user."""
    with suppress(OSError, ValueError, TypeError):  # it is another user's, or of another version
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(entry).startswith(f"/memfd:{_NAME}"):
                    with entry.open("rb") as page:
                        return Waiting(*json.loads(page.read(_MOST_BYTES)))
    return None
