"""Fixtures of the tests with torch."""

from pathlib import Path

import pytest

from tests.support.programs import Python
from tests.support.watched_job import Job


@pytest.fixture
def job(python: Python, tmp_path: Path) -> Job:
    return Job(python, tmp_path)
