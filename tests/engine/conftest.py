"""A processor that keeps no order, for the tests of what it may show; and mailboxes of several ranks in one process."""

from collections.abc import Iterator

import pytest

from tests.support.mailboxes import RING, Boxes, Mailboxes
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


@pytest.fixture(params=["1x2", "1+1"])
def boxes(small: None, request: pytest.FixtureRequest) -> Iterator[Boxes]:
    """Mailboxes of two ranks with small rings; on one host, or on two."""
    with Mailboxes(request.param, prompt=True) as made:
        for box in made.boxes:
            box.listen_to_all()
        yield made.boxes


SMALL = Config(segment_bytes=4096, heap_bytes=1 << 20)


@pytest.fixture
def arena() -> Iterator[Arena]:
    """That of three ranks, with small heaps."""
    arena = Arena.create(3, SMALL)
    yield arena
    arena.close()
