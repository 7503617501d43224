"""Links lead somewhere: in the repository, on the site, and from the package index into both."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.support.markdown import ROOT

PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/*.md",
        "docs/guides/*.md",
        "docs/notebooks/*.ipynb",
        ".github/**/*.md",
        "benchmarks/results/*.md",
    )
    for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]\n]+\]: (\S+)$", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
REPOSITORY = re.compile(r"https://(?:raw\.githubusercontent|github)\.com/unisono/unisono(?:/(?:blob|tree))?/main/(.*)")


def prose(path: Path) -> str:
    """The page without its code."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "``", text)


def links(path: Path) -> Iterator[str]:
    """Where the links of a page lead to."""
    return (inline or reference for inline, reference in LINK.findall(prose(path)))


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of a page, as GitHub and MyST make them of its headings."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {word.strip().replace(" ", "-") for word in words}


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[str, Mapping[str, str]]]:
    """The address of the site, and the pages that only a build has, by their paths."""
    sys.path.insert(0, str(ROOT / "docs"))
    from _ext import pages

    yield pages.SITE, {f"{pages.FOLDER}/{name}": text for name, text in pages.generated().items()}
    sys.path.remove(str(ROOT / "docs"))


def problem(path: Path, link: str, address: str, generated: Mapping[str, str]) -> str | None:
    """What is wrong with a link of this page; None: nothing. Of other hosts only the form is looked at."""
    if link.startswith(address):
        name, _, anchor = link.removeprefix(address).partition("#")
        source = name.replace(".html", ".md") or "index.md"
        if source not in generated and not (ROOT / "docs" / source).exists():
            return f"{link}: the site has no such page"
        named = {re.sub(r"[^a-z0-9]+", "-", x.lower()).strip("-") for x in HEADING.findall(generated.get(source, ""))}
        return None if not anchor or anchor in named else f"{link}: {source} has no such heading"
    if match := REPOSITORY.match(link):
        target, _, anchor = match[1].partition("#")
        where = ROOT / target
    elif re.match(r"https?://|mailto:", link):
        return None if not link.startswith("http://") or "localhost" in link else f"{link}: not by https"
    else:
        target, _, anchor = link.partition("#")
        where = (path.parent / target).resolve() if target else path
    if not where.exists():
        return f"{link}: there is no {where}"
    if anchor and where.suffix == ".md" and anchor not in anchors(where):
        return f"{link}: {where.name} has no such heading"
    return None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path, site: tuple[str, Mapping[str, str]]) -> None:
    assert not [said for link in links(path) if (said := problem(path, link, *site))]
