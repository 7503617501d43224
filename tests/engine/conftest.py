"""A processor that keeps no order, for the tests of what it may show; and mailboxes of several ranks in one process."""

import struct
from collections.abc import Callable, Iterator

import pytest

from tests.support.far_mailboxes import FarMailboxes
from tests.support.mailboxes import RING, Boxes
from tests.support.weak_memory import Weak
from unisono.engine import memory_order
from unisono.engine.mailbox import channel as module
from unisono.engine.mailbox import far_channel
from unisono.engine.memory import board
from unisono.schedule import Hosts


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> Weak:
    """Code that runs on a processor that keeps no order. Sets of ranks are short: fewer words, fewer choices."""
    made = Weak()
    monkeypatch.setattr(memory_order, "KEEPS_ORDER", False)
    monkeypatch.setattr(memory_order, "fence", made.order)
    monkeypatch.setattr(board, "fence", made.fence)
    monkeypatch.setattr(board, "_RANKS", 1)
    monkeypatch.setattr(board, "_VOTE", struct.Struct("<??hQQ1s1s"))
    return made


@pytest.fixture(params=["near", "far", "even ranks on one host, odd ones on another"])
def boxes(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Callable[[int], Boxes]]:
    """boxes(p): a mailbox for each of p ranks, with small rings; on one host, on p, or on two."""
    monkeypatch.setattr(module, "_RING_BYTES", RING)
    for name, nbytes in (("WINDOW", 6 * RING), ("COPIED", 2 * RING)):
        monkeypatch.setattr(far_channel, f"{name}_BYTES", nbytes)
    made: list[FarMailboxes] = []

    def make(ranks: int) -> Boxes:
        hosts = {"near": Hosts.one(ranks), "far": Hosts.of(range(ranks))}
        made.append(FarMailboxes(hosts.get(request.param, Hosts.of([rank % 2 for rank in range(ranks)])), prompt=True))
        for box in made[-1].boxes:
            box.listen_to_all()
        return made[-1].boxes

    yield make
    for mailboxes in made:
        mailboxes.close()
