"""Words that readers stumble over: none in pages and in the texts of errors."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.markdown import ROOT

WORDS = {
    r"(?<!there )(?<!There )\b(is|are) no (?!longer\b|more\b)": "is not a",
    r"\banew\b": "again",
    r"\bfor ever\b": "forever",
    r"\b(is|are) (said|told)\b": "name who reports it",
    r"\bhears?\b": "receives",
    r"\bhogs?\b": "background process",
    r"\b(rooms|floors?|roads?)\b": "packages, layers, paths",
    r"\bwho is (not|no)\b": "a subject that is a noun",
}
IN_ERRORS = {
    r"[;:] (add|call|give|install|leave|make|pass|set|start|use) ": "a sentence of its own: Pass ...",
    r"\bthere (is|are) no\b": "what was given, and what was expected",
    r"\b(has|have) (told|said)\b": "has sent, has published",
}
"""Of errors only."""
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")})
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def errors() -> Iterator[tuple[str, str]]:
    """The texts in statements that raise, and where they are."""
    for path in SOURCES:
        for raised in ast.walk(ast.parse(path.read_text())):
            for part in ast.walk(raised) if isinstance(raised, ast.Raise) else ():
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield f"{path.relative_to(ROOT)}:{part.lineno}", part.value


TEXTS = [
    *(
        (f"{page.relative_to(ROOT)}:{k}", line)
        for page in PAGES
        for k, line in enumerate(page.read_text().splitlines(), 1)
    ),
    *errors(),
]


@pytest.mark.parametrize("words", WORDS)
def test_hard_words_are_not_used(words: str) -> None:
    found = [where for where, text in TEXTS if re.search(words, text)]
    assert not found, f"better: {WORDS[words]}"


@pytest.mark.parametrize("words", IN_ERRORS)
def test_errors_have_plain_sentences(words: str) -> None:
    found = [where for where, text in errors() if re.search(words, text)]
    assert not found, f"better: {IN_ERRORS[words]}"
