"""Links and named files of pages that Sphinx does not build are there."""

import re

from tests.support.markdown import ROOT

PATTERNS = "*.md", "docs/*.md", "docs/guides/*.md", ".github/**/*.md"
PAGES = [page for pattern in PATTERNS for page in ROOT.glob(pattern)]
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]\n]+\]: (\S+)$", re.MULTILINE)
REPOSITORY = re.compile(r"https://(?:raw\.githubusercontent|github)\.com/unisono/unisono(?:/(?:blob|tree))?/main/")
SITE = "https://unisono.readthedocs.io/en/latest/"


def test_links_lead_to_files() -> None:
    assert len(PAGES) > 20
    for page in PAGES:
        for link in (inline or reference for inline, reference in LINK.findall(CODE.sub("", page.read_text()))):
            target = link.partition("#")[0]
            if target.startswith(SITE):
                source = target.removeprefix(SITE).replace(".html", ".md")
                assert source.startswith("reference/") or (ROOT / "docs" / source).exists(), f"{page}: {link}"
            elif REPOSITORY.match(target):
                assert (ROOT / REPOSITORY.sub("", target)).exists(), f"{page}: {link}"
            elif not re.match(r"https://|mailto:|http://localhost", target):
                assert page != ROOT / "README.md", f"{link}: a package index shows the README alone"
                assert (page.parent / target).exists(), f"{page}: {link}"


def test_named_functions_are_in_their_files() -> None:
    """In ARCHITECTURE: `calls/dispatch/drive.py` `drive`."""
    named = re.findall(r"`([\w/]+\.py)` `(\w+)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert len(named) > 10
    for path, name in named:
        code = (ROOT / "src" / "unisono" / path).read_text()
        assert re.search(rf"^\s*(def|class) {name}\b", code, re.MULTILINE), f"{path}: {name}"
