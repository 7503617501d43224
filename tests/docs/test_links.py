"""Links and named files of pages that Sphinx does not build are there."""

import re

from tests.support.markdown import ROOT

PATTERNS = "*.md", "docs/*.md", "docs/guides/*.md", ".github/**/*.md"
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)|^\[[^\]\n]+\]: ([^\s#]+)", re.MULTILINE)
REPOSITORY = re.compile(r"https://(?:raw\.githubusercontent|github)\.com/unisono/unisono(?:/(?:blob|tree))?/main/(.*)")
SITE = re.compile(r"https://unisono\.readthedocs\.io/en/latest/(?!reference/)(.+?)(?:\.html)?$")


def test_links_lead_to_files() -> None:
    pages = [page for pattern in PATTERNS for page in ROOT.glob(pattern)]
    assert len(pages) > 20
    for page in pages:
        for link in map("".join, LINK.findall(CODE.sub("", page.read_text()))):
            if ours := REPOSITORY.match(link):
                assert (ROOT / ours[1]).exists(), f"{page}: {link}"
            elif ours := SITE.match(link):
                assert (ROOT / "docs" / f"{ours[1]}.md").exists(), f"{page}: {link}"
            elif not re.match(r"https://|mailto:|http://localhost", link):
                assert page != ROOT / "README.md", f"{link}: a package index shows the README alone"
                assert (page.parent / link).exists(), f"{page}: {link}"


def test_named_functions_are_in_their_files() -> None:
    """In ARCHITECTURE: `calls/dispatch/drive.py` `drive`."""
    named = re.findall(r"`([\w/]+\.py)` `(\w+)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert len(named) > 10
    for path, name in named:
        code = (ROOT / "src" / "unisono" / path).read_text()
        assert re.search(rf"^\s*(def|class) {name}\b", code, re.MULTILINE), f"{path}: {name}"
