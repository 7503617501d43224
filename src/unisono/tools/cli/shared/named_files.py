"""Files and folders that a user has named, and that may not be writable."""

from __future__ import annotations

from pathlib import Path

from ....base.errors import ArgumentError


def write(output: Path, content: str) -> None:
    """Write a file. Raises ArgumentError where that is not possible."""
    try:
        output.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"cannot write {output}: {error.strerror}") from error


def make_folder(folder: Path) -> None:
    """Make a folder, unless it is there. Raises ArgumentError where that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"cannot make the folder {folder}: {error.strerror}") from error
