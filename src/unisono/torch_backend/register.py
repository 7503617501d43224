"""What `import torch` runs: it makes the name "unisono" known to torch.distributed, and costs next to nothing."""

from __future__ import annotations

import logging
import os
from typing import Any

__all__ = ["NAME", "register"]

NAME = "unisono"


def register() -> None:
    """Make "unisono" a backend of torch.distributed for CPU tensors; once is enough, and more do no harm.

    With UNISONO_DEFAULT=1 in the environment it becomes the one that torch takes for CPU tensors where none is named.
    Never raises: an error here would be one of `import torch`.
    """
    try:
        _register()
    except Exception as error:  # noqa: BLE001  see above; init_process_group says then that the name is unknown
        logging.getLogger(NAME).warning("torch.distributed does not take the backend %r: %s", NAME, error)


def _register() -> None:
    from torch import distributed

    if not distributed.is_available():
        return
    backends: Any = distributed.Backend
    if NAME.upper() not in backends._plugins:  # noqa: SLF001  there is no other way to ask
        backends.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
        # From 2.15 on torch records calls of backends that do not do so themselves: those that its dispatcher sees, and
        # the end of those whose works are written in C++. Of ours it would tell that a few began and none ended.
        recording = getattr(distributed.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", None)
        if isinstance(recording, set):
            recording.add(NAME)
    if os.environ.get("UNISONO_DEFAULT") == "1":
        backends.default_device_backend_map["cpu"] = NAME


def _create(options: Any, pg_options: Any) -> Any:
    """What torch calls on every member of a new group."""
    from .create import create

    return create(options, pg_options)
