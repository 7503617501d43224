"""The table of settings, from the metadata of `Config`."""

from __future__ import annotations

from unisono.base.config import SETTINGS, SHAPING, environment_name
from unisono.base.units import format_bytes

__all__ = ["page"]

_PAGE = """# Settings

Every setting is a field of `unisono.Config` and an environment variable, which is read when a group is made.
Bytes may have a unit: `UNISONO_SEGMENT_BYTES=1MiB`. All ranks of a group need the same values, except `lanes` and
`lane_bytes`. The first rank of each host, or the process that called `run`, sets these for all ranks of the host:
{shaping}.

`UNISONO_CACHE_DIR` is the folder for compiled code, such as a folder of a container's image. By default it is the
package's folder, or the user's cache directory if that is not writable. [Security](../security.md) says which files
are used.

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
