"""The table of settings, from the metadata of `Config`."""

from __future__ import annotations

from dataclasses import fields

from unisono.config import Config
from unisono.units import format_bytes

__all__ = ["page"]

_PAGE = """# Settings

Every setting is a field of `unisono.config.Config` and an environment variable, which is read when a group is made.
All ranks of a group must agree. Bytes may be given with a unit: `UNISONO_SEGMENT_BYTES=1MiB`.

| field | environment variable | default | unit | meaning |
| --- | --- | --- | --- | --- |
{rows}

```{{eval-rst}}
.. autoclass:: unisono.config.Config
   :members: from_env
```
"""


def page() -> str:
    """The page in MyST's Markdown."""
    rows = []
    for knob in fields(Config):
        env, unit, meaning = (knob.metadata[key] for key in ("env", "unit", "why"))
        default = format_bytes(knob.default) if unit == "bytes" and knob.default else knob.default
        rows.append(f"| `{knob.name}` | `{env}` | {default} | {unit} | {meaning} |")
    return _PAGE.format(rows="\n".join(rows))
