"""Fixtures of the tests with torch."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.watched_job import Job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for rank in made.ranks:
        rank.kill()
        rank.communicate()
