"""The pages that are written from the code have everything that is in the code, and what they name exists."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

import unisono
from tests.support.markdown import ROOT
from unisono.base import errors
from unisono.base.config import SETTINGS, environment_name
from unisono.schedule.algorithms import CATALOGUE

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site() -> Iterator[Any]:
    """site(name): a module of the extension that writes the pages."""
    sys.path.insert(0, str(DOCS))
    yield lambda name: importlib.import_module(f"_ext.{name}")
    sys.path.remove(str(DOCS))


def test_every_public_name_is_in_the_reference(site: Any) -> None:
    page = "\n".join(site("api").pages().values())
    shown = set(re.findall(r"^\.\. (?:autofunction|autoclass|py:data):: unisono\.(\w+)(?:\(\))?$", page, re.MULTILINE))
    modules = {"algorithms", "autograd", "draw", "p2p", "simulate", "testing"}
    elsewhere = {*errors.__all__, *modules, "Config"}  # these have pages of their own
    assert shown == set(unisono.__all__) - elsewhere


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_says_what_to_do(site: Any, name: str) -> None:
    assert site("errors").next_move(getattr(errors, name))
    assert f"unisono.{name}" in site("errors").page()


def test_every_setting_is_in_the_table(site: Any) -> None:
    page = site("settings").page()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == len(SETTINGS)
    for name in SETTINGS:
        assert any(name in row and environment_name(name) in row for row in rows)


def test_every_algorithm_has_its_drawing(site: Any) -> None:
    files = site("algorithms").pages()
    for name, algorithm in CATALOGUE.items():
        assert files[f"algorithms/drawings/{name}.svg"].startswith("<svg")
        assert f"## {algorithm.name}\n" in files[f"algorithms/{algorithm.collective}.md"]


def test_the_words_of_the_glossary_are_those_of_the_code() -> None:
    """Each is a word of the file that its entry names, or the file's name."""
    glossary = (DOCS / "glossary.md").read_text()
    entries = re.findall(r"^(\S.*)\n((?:  .*\n)+)", glossary, re.MULTILINE)
    assert len(entries) >= 70
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
