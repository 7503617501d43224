"""Groups are reconfigured while ranks die or stop: at each step, and some rounds of `tests.fuzz.reconfigures`."""

import random
import signal
import time

import pytest
import torch.distributed as dist

from tests.conftest import NIGHTLY
from tests.fuzz.reconfigures import Fault, Players, Round, draw
from tests.support.member import PHASES
from tests.support.programs import Python

pytestmark = pytest.mark.skipif(not hasattr(dist, "_reconfigure"), reason="this torch cannot reconfigure groups")

DRAWN_S = 60.0 if NIGHTLY else 5.0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("hosts", [1, 2])
def test_each_phase(python: Python, hosts: int, how: int) -> None:
    players = Players(python, hosts)
    for number, phase in enumerate(PHASES):
        assert players.play(Round(3, (Fault(number % 3, how, phase),))) == [], phase


def test_rounds_drawn_by_lot(python: Python) -> None:
    """So many as there is time for, always the same ones first."""
    players, rng, end = Players(python), random.Random(7), time.monotonic() + DRAWN_S
    while time.monotonic() < end:
        assert players.play(one := draw(rng)) == [], one
