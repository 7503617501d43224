"""Where short messages arrive: one thread takes a message while another posts the receive of the next one."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import torch

from tests.support.in_process_carrier import InProcessCarrier, Wires
from unisono.across.landing import Landing


class Watched:
    """The word of a landing: before it is read, another thread tries to post the landing."""

    def __init__(self, word: Any, landing: Landing, carrier: InProcessCarrier) -> None:
        self._word, self._other = word, threading.Thread(target=landing.post, args=(carrier,))

    def __getitem__(self, at: int) -> int:
        if self._other.ident is None:
            self._other.start()
            self._other.join(0.2)  # it ends only where nothing keeps it from posting
        value: int = self._word[at]
        return value

    def __setitem__(self, at: int, value: int) -> None:
        self._word[at] = value

    def end(self) -> None:
        self._other.join(10)
        assert not self._other.is_alive()


def test_a_message_is_taken_before_its_receive_is_posted_again() -> None:
    wires = Wires(Random(3))
    sender, receiver = (InProcessCarrier(wires, rank) for rank in range(2))
    landing = Landing(0, 5, 16)
    landing.post(receiver)
    sender.isend(1, 5, torch.tensor([77, 4]).view(torch.uint8))
    while wires.move():
        pass
    landing._word = watched = Watched(landing._word, landing, receiver)
    assert landing.take(4)
    watched.end()
    assert landing.handle is not None, "it stands for the next call"
