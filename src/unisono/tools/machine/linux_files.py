"""The files in which Linux tells of a machine: those of this one, or of a tree that looks like it."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path


class Files:
    """Reads files below a root. What is not there, or may not be read, is empty."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def text(self, path: str) -> str:
        """The content of a file, without blanks around it."""
        with suppress(OSError):
            return (self.root / path).read_text(errors="replace").strip()
        return ""

    def number(self, path: str) -> int | None:
        """The number in a file; None if there is none."""
        with suppress(ValueError):
            return int(self.text(path))
        return None

    def field(self, path: str, name: str) -> str:
        """What a file says after a name and a colon, at its first line with this name."""
        found = re.search(rf"^{re.escape(name)}\s*:[ \t]*(.*)$", self.text(path), re.MULTILINE)
        return found[1].strip() if found else ""

    def kibibytes(self, path: str, name: str) -> int:
        """A size that a file gives in kB, as bytes; 0 if there is none."""
        value = self.field(path, name).removesuffix("kB").strip()
        return int(value) << 10 if value.isdecimal() else 0

    def chosen(self, path: str) -> str:
        """The choice that is in brackets: `always [madvise] never`."""
        found = re.search(r"\[(\w+)\]", self.text(path))
        return found[1] if found else ""

    def folders(self, pattern: str) -> list[Path]:
        """What is there of this pattern, in order."""
        return sorted(self.root.glob(pattern))
