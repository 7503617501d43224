"""The page of errors: the tree as `base/errors.py` draws it, the docstring of each class, and all texts."""

from __future__ import annotations

import inspect

import unisono
from unisono.base import errors

from . import error_texts

__all__ = ["page"]

_NEXT = "What to do: "
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

## Texts

The texts of all errors, read from the code; names in braces are filled in when the error is raised. Errors about other
ranks (`MismatchError`, `PeerGone`, ...) make their texts from their fields: [Debug](../guides/debug.md) has examples.

{texts}
"""


def page() -> str:
    """The page in MyST's Markdown. Raises ValueError if a docstring does not end with what to do."""
    drawing = (inspect.getdoc(errors) or "").split("\n\n")[1]
    order = [errors.UnisonoError, *(getattr(errors, name) for name in _drawn(drawing))]
    classes = "\n\n".join(_section(error) for error in order)
    return _PAGE.format(tree=inspect.cleandoc(drawing), classes=classes, texts=error_texts.table())


def _section(error: type[Exception]) -> str:
    if not (inspect.getdoc(error) or "").split("\n\n")[-1].startswith(_NEXT):
        raise ValueError(f"the docstring of {error.__name__} must end with a paragraph {_NEXT!r}")
    bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
    home = "unisono" if error.__name__ in unisono.__all__ else "unisono.errors"
    directive = f".. autoexception:: {home}.{error.__name__}()"
    return f"## {error.__name__}\n\nA kind of {bases}.\n\n```{{eval-rst}}\n{directive}\n```"


def _drawn(drawing: str) -> list[str]:
    return [line.split("── ")[1].split()[0] for line in drawing.splitlines() if "── " in line]
