"""Register the backend with torch.distributed. `import torch` runs this, so it imports very little."""

from __future__ import annotations

import logging
import os
from functools import cache, wraps
from typing import Any

from ...base.release import NAME


def register() -> None:
    """Register "unisono" as a backend of torch.distributed for CPU tensors. Idempotent.

    With UNISONO_AS=gloo in the environment, groups that programs ask of Gloo are ours, too (`answer_to`). With
    UNISONO_DEFAULT=1 the backend becomes torch's default for CPU tensors. It never raises, because an error here would
    be an error of `import torch`. It logs a warning instead.
    """
    try:
        _register()
    except Exception as error:  # noqa: BLE001  see above; init_process_group then says that the name is unknown
        logging.getLogger(NAME).warning("torch.distributed does not take the backend %r: %s", NAME, error)


def _register() -> None:
    from torch import distributed

    if not distributed.is_available():
        return
    backends: Any = distributed.Backend
    if NAME.upper() not in backends._plugins:  # noqa: SLF001  there is no other way to ask
        backends.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
        # From torch 2.15 on, the flight recorder records calls through torch's dispatcher, unless their backend says
        # that it records by itself. Few of our calls go there, and the recorder would not see their ends.
        recording = getattr(distributed.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", None)
        if isinstance(recording, set):
            recording.add(NAME)
        if new_comm := getattr(distributed.distributed_c10d, "new_comm", None):  # torchcomms is installed
            distributed.distributed_c10d.new_comm = _without_ours(new_comm)  # type: ignore[attr-defined]
    if os.environ.get("UNISONO_DEFAULT") == "1":
        backends.default_device_backend_map["cpu"] = NAME
    if os.environ.get("UNISONO_AS"):
        from .answer_to import answer_by_environment

        answer_by_environment()


def _without_ours(new_comm: Any) -> Any:
    """torchcomms' function that makes communicators: torch calls it for every backend, where the user says so."""

    @wraps(new_comm)
    def changed(backend: str, *args: Any, **options: Any) -> Any:
        if backend == NAME:
            from ...base.errors import ArgumentError

            raise ArgumentError(
                "with TORCH_DISTRIBUTED_USE_TORCHCOMMS=1 torch makes its groups by torchcomms, which has no "
                f'backend "{NAME}"; unset this variable'
            )
        return new_comm(backend, *args, **options)

    return changed


def _create(options: Any, pg_options: Any) -> Any:
    """Make a process group. torch calls this on every member of a new group."""
    return _imported()(options, pg_options)


@cache
def _imported() -> Any:
    """What makes process groups: imported once, because `no_collections` counts all that a rank has frozen."""
    from ...base.python import no_collections

    with no_collections():
        from .create import create

    return create
