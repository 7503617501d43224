"""The table of settings, from the metadata of `Config`."""

from __future__ import annotations

from unisono.base.config import SETTINGS, SHAPING, environment_name
from unisono.base.units import format_bytes

__all__ = ["page"]

_PAGE = """# Settings

Every setting is a field of `unisono.Config` and an environment variable, which is read when a group is made.
Bytes may be given with a unit: `UNISONO_SEGMENT_BYTES=1MiB`. All ranks of a group must agree. Settings that shape calls
({shaping}) count for all ranks as rank 0, or the process that called `run`, has them.

Machine code, and the programs of groups of 16 ranks and more, are made once per installation and kept beside the
package, or in the user's cache directory if the package's folder is not writable. `UNISONO_CACHE_DIR` names another
folder, such as a folder of a container's image.
A file there is used if it belongs to the user of the process, to root or to the owner of the package.

| field | environment variable | default | values | meaning |
| --- | --- | --- | --- | --- |
{rows}

```{{eval-rst}}
.. autoclass:: unisono.Config
   :members: from_env
```
"""


def page() -> str:
    """The page in MyST's Markdown."""
    rows = []
    for name, setting in SETTINGS.items():
        env, unit = environment_name(name), setting.unit
        default = _said(setting.usually, unit)
        if setting.amd is not None:
            default += f"; on AMD processors {_said(setting.amd, unit)}"
        rows.append(f"| `{name}` | `{env}` | {default} | {setting.values} | {setting.why} |")
    return _PAGE.format(rows="\n".join(rows), shaping=", ".join(f"`{name}`" for name in SHAPING))


def _said(value: object, unit: str) -> str:
    return format_bytes(value) if unit == "bytes" and isinstance(value, int) and value else str(value)
