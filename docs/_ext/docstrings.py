"""Our docstrings are plain text with `code` in backticks and indented examples; this makes them reStructuredText."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from itertools import groupby
from typing import Any

__all__ = ["process", "restructured", "with_parameters"]

_CODE = re.compile(r"(`+[^`]+`+)")
_MARKUP = re.compile(r"(\*|\||\\|_(?!\w)|(?<!\w)_)")


def restructured(lines: list[str]) -> list[str]:
    """The lines of a docstring as lines of reStructuredText: only code has markup, what is indented is code."""
    out: list[str] = []
    code = False
    for line in lines:
        inside = line.startswith("    ") or (code and not line)
        if inside != code:
            out += ["::", ""] if inside else [""] if out[-1] else []
        out.append(line if inside else _escaped(line))
        code = inside
    return out


def with_parameters(lines: list[str], names: Collection[str]) -> list[str]:
    """A paragraph that begins with the name of a parameter and a colon becomes a list of parameters, one for each name
    at the beginning of a sentence.
    """
    start = re.compile(rf"(?:^|(?<=[.;)] ))({'|'.join(names) or '(?!)'}): ")
    out: list[str] = []
    for filled, group in groupby(lines, key=bool):
        paragraph = list(group)
        text = " ".join(paragraph)
        if filled and start.match(text):
            said = start.split(text)[1:]
            out += [f":param {name}: {what.strip()}" for name, what in zip(said[::2], said[1::2], strict=True)]
        else:
            out += paragraph
    return out


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001
    """Sphinx's event: rewrite the lines of a docstring in place."""
    try:
        names = inspect.signature(obj).parameters
    except (TypeError, ValueError):
        names = {}
    lines[:] = restructured(with_parameters(lines, names))


def _escaped(line: str) -> str:
    parts = _CODE.split(line)
    for k, part in enumerate(parts):
        if k % 2:
            followed = parts[k + 1][:1].isalnum()
            parts[k] = f"``{part.strip('`')}``" + ("\\ " if followed else "")
        else:
            parts[k] = _MARKUP.sub(r"\\\1", part)
    return "".join(parts)
