"""A processor that keeps no order, for the tests of what it may show; and mailboxes of several ranks in one process."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.mailboxes import RING, Boxes, Mailboxes, Make
from tests.support.weak_memory import Memory
from unisono.base.config import Config
from unisono.engine import memory_order
from unisono.engine.mailbox import channel, far_channel
from unisono.engine.memory import board
from unisono.engine.memory.arena import Arena


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code runs on a processor that keeps no order."""
    monkeypatch.setattr(memory_order, "KEEPS_ORDER", False)
    monkeypatch.setattr(memory_order, "fence", lambda: Memory.latest.order())
    monkeypatch.setattr(board, "fence", lambda: Memory.latest.fence())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is long in messages is shorter, so that all of it happens soon."""
    monkeypatch.setattr(channel, "_RING_BYTES", RING)
    for name, nbytes in (("WINDOW", 6 * RING), ("COPIED", 2 * RING)):
        monkeypatch.setattr(far_channel, f"{name}_BYTES", nbytes)


@pytest.fixture(params=["near", "far"])
def boxes(small: None, request: pytest.FixtureRequest) -> Iterator[Make]:
    """boxes(p): a mailbox for each of p ranks, with small rings; on one host, or on p."""
    with ExitStack() as stack:

        def make(ranks: int) -> Boxes:
            hosts = f"1x{ranks}" if request.param == "near" else f"{ranks}x1"
            made = stack.enter_context(Mailboxes(hosts, prompt=True))
            for box in made.boxes:
                box.listen_to_all()
            return made.boxes

        yield make


SMALL = Config(segment_bytes=4096, heap_bytes=1 << 20)


@pytest.fixture
def arena() -> Iterator[Arena]:
    """That of three ranks, with small heaps."""
    arena = Arena.create(3, SMALL)
    yield arena
    arena.close()
