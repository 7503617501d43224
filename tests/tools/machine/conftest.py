"""Trees of files that look like a machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from unisono.tools.machine import Files

Tree = Callable[[Mapping[str, str]], Files]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """tree({path: text}): a root with these files."""

    def made(content: Mapping[str, str]) -> Files:
        for path, text in content.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return Files(tmp_path)

    return made
