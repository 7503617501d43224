"""The page of errors: the tree as `base/errors.py` draws it, and the docstring of each class: its cause and what to
do."""

from __future__ import annotations

import inspect
from textwrap import indent

import unisono
from unisono.base import errors

from .docstrings import restructured

__all__ = ["NEXT", "next_move", "page"]

NEXT = "What to do: "
"""How the last paragraph of an error's docstring starts."""

_PAGE = """# Errors

Every error is an instance of `unisono.UnisonoError`. All classes are in `unisono.errors`; those that programs often
catch are also names of `unisono`. They are sorted by whose fault it is:

```text
{tree}
```

{classes}

## What errors carry

```{{eval-rst}}
.. autoclass:: unisono.errors.CallRecord

.. autoclass:: unisono.errors.Departure
```
"""


def page() -> str:
    """The page in MyST's Markdown."""
    drawing = (inspect.getdoc(errors) or "").split("\n\n")[1]
    order = [errors.UnisonoError, *(getattr(errors, name) for name in _drawn(drawing))]
    return _PAGE.format(tree=inspect.cleandoc(drawing), classes="\n\n".join(_section(error) for error in order))


def next_move(error: type[Exception]) -> str:
    """What the docstring of an error says is to be done. Raises ValueError if it says nothing."""
    *_, last = inspect.cleandoc(error.__doc__ or "").split("\n\n")
    if not last.startswith(NEXT):
        raise ValueError(f"the docstring of {error.__name__} must end with a paragraph {NEXT!r}")
    return " ".join(last.removeprefix(NEXT).split())


def _section(error: type[Exception]) -> str:
    next_move(error)
    bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
    text = "\n".join(restructured((inspect.getdoc(error) or "").splitlines()))
    home = "unisono" if error.__name__ in unisono.__all__ else "unisono.errors"
    directive = f".. py:exception:: {home}.{error.__name__}\n\n{indent(text, '   ')}"
    return f"## {error.__name__}\n\nA kind of {bases}.\n\n```{{eval-rst}}\n{directive}\n```"


def _drawn(drawing: str) -> list[str]:
    return [line.split("── ")[1].split()[0] for line in drawing.splitlines() if "── " in line]
