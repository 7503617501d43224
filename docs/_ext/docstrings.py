"""Our docstrings are plain text with `code` in backticks and indented examples; this makes them reStructuredText."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["process", "process_signature", "restructured"]

_CODE = re.compile(r"(`+[^`]+`+)")
_MARKUP = re.compile(r"(\*|\||\\|_(?!\w)|(?<!\w)_)")


def restructured(lines: list[str]) -> list[str]:
    """The lines of a docstring as lines of reStructuredText: what is no code has no markup, what is indented is code."""
    out: list[str] = []
    code = False
    for line in lines:
        starts = line.startswith("    ") and not code
        code = line.startswith("    ") or (code and not line)
        out += ["::", "", line] if starts else [line if code else _escaped(line)]
    return out


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001
    """Sphinx's event: rewrite the lines of a docstring in place."""
    lines[:] = restructured(lines)


def process_signature(  # noqa: PLR0917
    app: Any,  # noqa: ARG001
    what: str,
    name: str,  # noqa: ARG001
    obj: Any,  # noqa: ARG001
    options: Any,  # noqa: ARG001
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Sphinx's event: errors are caught, not made, so how they are made is not shown."""
    return ("", None) if what == "exception" else (signature, returns)


def _escaped(line: str) -> str:
    parts = _CODE.split(line)
    for k, part in enumerate(parts):
        if k % 2:
            followed = parts[k + 1][:1].isalnum()
            parts[k] = f"``{part.strip('`')}``" + ("\\ " if followed else "")
        else:
            parts[k] = _MARKUP.sub(r"\\\1", part)
    return "".join(parts)
