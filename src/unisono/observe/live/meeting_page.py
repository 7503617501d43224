"""What a process without a group waits for: a page of memory. Processes of the same user find it through /proc.

`unisono doctor` reads it. A process that waits for long says on standard error what is on its page.
"""

import json
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ...base.linux import fill_standard_streams
from ...base.python import tell
from ...base.units import ranks_text
from ...engine.process.stacks import answer_with_stacks

_NAME = "unisono-meeting"
_MOST_RANKS, _MOST_BYTES, _MOST_WORDS = 64, 4096, 300
_MOST_NAMED = 8


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

    @property
    def awaited(self) -> str:
        """What this rank waits for, as `ranks 2, 3 to come at node7:29500`."""
        at = f" at {self.where}" if self.where else ""
        return f"{ranks_text(self.ranks, _MOST_NAMED)} {self.what}{at}"


_NOTHING = Waiting(0, 0, (), "", "", 0, 0)


class _Page(threading.local):
    """The page of this thread.

    number: the number of its file; 0: the thread has none.
    shown: what is on it.
    began, deadline: when this rank began to wait, and until when it waits.
    say_at: when it says what it waits for.
    """

    number, shown = 0, _NOTHING
    began = 0.0
    deadline = say_at = math.inf


_page = _Page()


@contextmanager
def meeting_page(rank: int, size: int, timeout_s: float, say_after_s: float) -> Iterator[None]:
    """Keep a page as long as this rank has no group. Within another one, the same page.

    timeout_s: how long this rank waits for the others.
    say_after_s: see `waits_still`; 0: never.
    """
    if _page.number:
        yield
        return
    with suppress(OSError):  # no descriptor is free
        fill_standard_streams()  # also before the sockets of torch's stores
        _page.shown = _NOTHING._replace(rank=rank, size=size, stacks=answer_with_stacks())
        _page.began = time.monotonic()
        _page.deadline, _page.say_at = _page.began + timeout_s, _page.began + (say_after_s or math.inf)
        _page.number = os.memfd_create(_NAME, os.MFD_CLOEXEC)
    try:
        yield
    finally:
        if _page.number:
            os.close(_page.number)
            _page.number, _page.shown = 0, _NOTHING


def waits(ranks: Sequence[int], what: str, where: str = "") -> None:
    """Say on the page what this rank waits for from now on."""
    if not _page.number:
        return
    some, what, where = tuple(ranks[:_MOST_RANKS]), what[:_MOST_WORDS], where[:_MOST_WORDS]
    since_ns = _page.shown.since_ns if what == _page.shown.what else time.monotonic_ns()
    _page.shown = _page.shown._replace(ranks=some, what=what, where=where, since_ns=since_ns)
    os.pwrite(_page.number, json.dumps(_page.shown).encode().ljust(_MOST_BYTES), 0)


def waits_still() -> None:
    """Say once on standard error what is on the page, and how long this rank waits, after `say_after_s`.

    A rank calls it again and again while it waits for ranks whose absence no other rank tells.
    """
    now = time.monotonic()
    if not _page.shown.what or now < _page.say_at:
        return
    _page.say_at = math.inf
    one = _page.shown
    left_s = _page.deadline - now
    limit = "without end" if math.isinf(left_s) else f"for at most {max(0.0, left_s):.0f} s more"
    tell(
        f"unisono: rank {one.rank} of {one.size} has waited {now - _page.began:.3g} s for {one.awaited}; it waits "
        f"{limit}\n"
    )


def _in_child() -> None:
    """A forked child is no rank of this meeting."""
    if _page.number:
        os.close(_page.number)
        _page.number, _page.shown = 0, _NOTHING


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
