"""Random programs of fixed seeds, and what draws and runs them. `python -m tests.fuzz` runs others."""

from collections.abc import Iterator

import pytest

from tests.fuzz.draw import Session
from tests.fuzz.programs import shown
from tests.fuzz.worlds import Worlds


@pytest.fixture(scope="module")
def live() -> Iterator[Worlds]:
    with Worlds() as worlds:
        yield worlds


@pytest.mark.sampled
@pytest.mark.parametrize("hosts", ["1", "2", "3", "5", "2x1", "2+1"])
@pytest.mark.parametrize("seed", [1, 2])
def test_programs(live: Worlds, hosts: str, seed: int) -> None:
    session = Session(f"{hosts} {seed}", (hosts,), 1 << 20)
    for _ in range(8):
        program = session.program()
        wrong = live.run(program)
        assert not wrong, "\n".join([*wrong, shown(program)])
