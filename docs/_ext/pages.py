"""The Sphinx extension: writes the generated pages before the build reads its sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import algorithms, api, errors, settings

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["FOLDER", "SITE", "generated", "local_links", "setup"]

SITE = "https://unisono.readthedocs.io/en/latest/"
"""Where the site is. Pages link by it to what only a build has, so that the links work in the repository, too."""

FOLDER = "reference"
"""Below the folder of the sources; git ignores it."""


def generated() -> dict[str, str]:
    """Every generated file: its path below FOLDER, and its text."""
    return {
        "errors.md": errors.page(),
        "settings.md": settings.page(),
        **api.pages(),
        **algorithms.pages(),
    }


def setup(app: Sphinx) -> Mapping[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", _write)
    app.connect("source-read", _localize)
    app.connect("build-finished", _write_players)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def local_links(text: str) -> str:
    """The text with its links to the site as links to pages of this build, which Sphinx then checks."""
    return re.sub(rf"\]\({re.escape(SITE)}(\S+?)\.html(#\S+?)?\)", r"](/\1.md\2)", text)


def _localize(app: Sphinx, name: str, source: list[str]) -> None:  # noqa: ARG001
    source[0] = local_links(source[0])


def _write(app: Sphinx) -> None:
    """Write what has changed, so that Sphinx reads only that again, and remove what is no longer generated."""
    folder, files = Path(app.srcdir) / FOLDER, generated()
    for old in folder.rglob("*.*"):
        if str(old.relative_to(folder)) not in files:
            old.unlink()
    for name, text in files.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def _write_players(app: Sphinx, failed: Exception | None) -> None:
    """Write the pages that play tables, which are not sources, beside the pages that show them in frames."""
    if failed or app.builder.format != "html":
        return
    for name, text in algorithms.players().items():
        path = Path(app.outdir) / FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
