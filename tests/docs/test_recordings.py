"""The recordings in the docs are what the commands print now."""

import html
import re

from tests.docs import recordings


def words(svg: str) -> set[str]:
    """The words of the terminal, without numbers, times and frames."""
    shown = html.unescape(" ".join(re.findall(r"<text [^>]*>(.*?)</text>", svg)))
    return set(re.sub(r"[─╭╮╰╯│\d.]+|\b[nµm]?s\b", "", shown).split())


def test_doctor() -> None:
    assert words(recordings.FILE.read_text()) <= words(recordings.record())
