"""Links lead somewhere, and the pages that are written from the code have everything that is in the code.

Links lead into the repository, to the site, and from the package index into both.
"""

import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import unisono
from tests.support.markdown import ROOT
from unisono.base import errors
from unisono.base.config import SETTINGS, environment_name
from unisono.schedule.algorithms import CATALOGUE

PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/*.md",
        "docs/guides/*.md",
        "docs/notebooks/*.ipynb",
        ".github/**/*.md",
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


DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def extension() -> Iterator[Any]:
    """extension(name): a module of the extension that writes the pages."""
    sys.path.insert(0, str(DOCS))
    yield lambda name: importlib.import_module(f"_ext.{name}")
    sys.path.remove(str(DOCS))


def test_every_public_name_is_in_the_reference(extension: Any) -> None:
    page = "\n".join(extension("api").pages().values())
    shown = set(re.findall(r"^\.\. (?:autofunction|autoclass|py:data):: unisono\.(\w+)(?:\(\))?$", page, re.MULTILINE))
    elsewhere = {*errors.__all__, "errors", "testing", "Config"}  # these have pages of their own
    assert shown == set(unisono.__all__) - elsewhere


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_says_what_to_do(extension: Any, name: str) -> None:
    assert extension("errors").next_move(getattr(errors, name))
    home = "unisono" if name in unisono.__all__ else "unisono.errors"
    assert f"py:exception:: {home}.{name}\n" in extension("errors").page()


def test_every_setting_is_in_the_table(extension: Any) -> None:
    page = extension("settings").page()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == len(SETTINGS)
    for name in SETTINGS:
        assert any(name in row and environment_name(name) in row for row in rows)


def test_every_algorithm_has_its_drawing(extension: Any) -> None:
    files = extension("algorithms").pages()
    for name, algorithm in CATALOGUE.items():
        assert files[f"algorithms/drawings/{name}.svg"].startswith("<svg")
        assert f"## {algorithm.name}\n" in files[f"algorithms/{algorithm.collective}.md"]


def test_the_words_of_the_glossary_are_those_of_the_code() -> None:
    """Each is a word of the file that its entry names, or the file's name."""
    glossary = (DOCS / "glossary.md").read_text()
    entries = re.findall(r"^(\S.*)\n((?:  .*\n)+)", glossary, re.MULTILINE)
    assert len(entries) >= 60
    assert [term for term, _ in entries] == sorted(term for term, _ in entries)
    for term, text in entries:
        files = re.findall(r"`([\w/]+\.py)`", text)
        assert files, term
        code = " ".join(file + (ROOT / "src" / "unisono" / file).read_text().lower() for file in files)
        assert not [word for word in re.findall(r"\w+", term.lower()) if word.rstrip("s") not in code], term


@pytest.mark.parametrize(
    "path", [*sorted((ROOT / ".github").rglob("*.yml")), ROOT / ".readthedocs.yaml"], ids=lambda path: path.name
)
def test_settings_of_services_are_yaml(path: Any) -> None:
    assert yaml.safe_load(path.read_text())


def test_links_and_images_work_on_a_package_index() -> None:
    """They are absolute, and those into the repository name a file that is there: images raw, the others as a page."""
    text = (ROOT / "README.md").read_text()
    found = re.findall(r"(!?)\[[^\]]*\]\((\S+?)\)", text) + re.findall(r"^()\[.+\]: (\S+)$", text, re.MULTILINE)
    assert {image for image, _ in found} == {"", "!"}
    for image, target in found:
        assert target.startswith("https://"), target
        host = (
            "https://raw.githubusercontent.com/unisono/unisono/main/"
            if image
            else "https://github.com/unisono/unisono/"
        )
        if image or target.startswith(host):
            path = ROOT / re.sub("^(blob|tree)/main/", "", target.removeprefix(host))
            assert path.exists(), target
            assert image or f"/{'tree' if path.is_dir() else 'blob'}/main/" in target
