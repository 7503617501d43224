"""How ranks of a trial, and the process that watches them, tell each other how far they are: no fault touches files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


class Meeting:
    """A folder with a file for each stage that a rank has reached."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def tell(self, stage: str, value: Any = None) -> None:
        """Write it down. value: of JSON."""
        draft = self._folder / f"{stage}.draft"
        draft.write_text(json.dumps(value))
        draft.rename(self._folder / stage)

    def has(self, stage: str) -> bool:
        return (self._folder / stage).exists()

    def told(self, stage: str, ranks: Iterable[int]) -> dict[int, Any]:
        """The values of `stage R`, of those of the ranks that have told them."""
        files = {rank: self._folder / f"{stage} {rank}" for rank in ranks}
        return {rank: json.loads(file.read_text()) for rank, file in files.items() if file.exists()}


def until(condition: Callable[[], bool], most_s: float = 60.0) -> bool:
    """Wait until this is true, or for so long. Returns whether it is."""
    end = time.monotonic() + most_s
    while not (done := condition()) and time.monotonic() < end:
        time.sleep(0.002)
    return done
