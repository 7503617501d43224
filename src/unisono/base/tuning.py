"""What `unisono tune` has measured on this machine: figures that `Config` takes in place of its defaults.

They are in a file of the user's cache directory, one for each processor model, number of processors and version of
unisono, so that machines may share a home directory. UNISONO_MEASURED names another file; empty, it means none.
"""

import json
import os
import warnings
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from .linux import model
from .release import __version__

if TYPE_CHECKING:
    from .tuning_results import TuningResults


def file() -> Path | None:
    """Where the figures of this machine are kept, or would be; None where the environment says nowhere."""
    named = os.environ.get("UNISONO_MEASURED")
    if named is not None:
        return Path(named) if named else None
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    key = blake2b("\n".join(map(str, _key().values())).encode(), digest_size=6).hexdigest()
    return Path(folder, "unisono", f"measured-{key}.json")


def measured() -> "TuningResults | None":
    """The figures of this machine; None where there are none. Read once per process.

    A file that cannot be read, or is damaged, is as good as none; a warning says so.
    """
    try:
        path = file()
    except RuntimeError:  # there is no home directory
        return None
    return _read(path) if path else None


def save(found: "TuningResults") -> Path:
    """Keep these figures for processes that start from now on. Returns the file. Raises OSError."""
    path = file()
    if path is None:
        raise OSError("UNISONO_MEASURED is empty, so there is no file for figures: unset it, or name one")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    content = {**_key(), "on": found.on, "figures": dict(found.figures), "costs": found.costs, "moment": found.moment}
    part.write_text(json.dumps(content, indent=2) + "\n")
    part.replace(path)  # a process that reads meanwhile sees the old file or the new one
    _read.cache_clear()
    return path


def _key() -> dict[str, str | int]:
    return {"processor": model(), "processors": os.cpu_count() or 1, "unisono": __version__}


@cache
def _read(path: Path) -> "TuningResults | None":
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        _say_ignored(path, error)
        return None
    from .tuning_results import checked  # most machines have no such file

    try:
        return checked(json.loads(text), _key())
    except (ValueError, KeyError, TypeError) as error:
        _say_ignored(path, error)
        return None


def _say_ignored(path: Path, error: Exception) -> None:
    reason = f"{type(error).__name__}: {error}"
    warnings.warn(
        f"{path} is ignored, and the defaults are used ({reason}): run `unisono tune` again, or remove the file",
        stacklevel=2,
    )
