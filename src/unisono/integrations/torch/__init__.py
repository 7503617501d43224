"""The torch.distributed backend: `dist.init_process_group("unisono")` on CPU tensors.

No import is needed: once the package is installed, `import torch` calls `register` through an entry point. So this file
imports very little. The other modules are loaded when the first process group is made.

`process_group` makes a group, and backends for other devices beside it. It has the classes that torch sees.
`group_methods` has their methods, and `answers` what they answer to rare questions, and what they refuse. `join_group`
joins and leaves a group. `dist2` makes groups that only the program holds. `entry` decorates each method: with the
forms of torch's calls, events for profilers, and torch's classes and phrases of errors. `to_torch` has these, and the
works that asynchronous calls return. `patch` changes torch itself.

`answer_to` changes more: programs that ask for Gloo get our groups (`create_named`, `named_gloo`), also within groups
that they put together. `watch` watches groups that stay Gloo's or NCCL's: `watched_calls` logs calls of Python code,
`cpp_calls` follows those of C++ code and of NCCL, and `watcher` looks at all.
"""

import logging
import os
from contextlib import suppress
from functools import cache
from typing import Any

from ...base.release import NAME

__all__ = ["register"]


def register() -> None:
    """Register "unisono" as a backend of torch.distributed for CPU tensors. Idempotent.

    With UNISONO_AS=gloo in the environment, programs that ask for Gloo get our groups, too (`answer_to`). With
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
    with suppress(ImportError):  # torch 2.15 has no such module
        from torch.distributed import _dist2

        if NAME not in _dist2._BACKENDS:  # noqa: SLF001
            _dist2.register_backend(NAME, _create_dist2)
    if os.environ.get("UNISONO_DEFAULT") == "1":
        backends.default_device_backend_map["cpu"] = NAME
    if os.environ.get("UNISONO_AS"):
        from .answer_to import answer_by_environment

        answer_by_environment()
    if os.environ.get("UNISONO_WATCH") == "1":
        from .watch import patch

        patch()


def _create(options: Any, pg_options: Any) -> Any:
    """Make a process group. torch calls this on every member of a new group."""
    return _imported()(options, pg_options)


def _create_dist2(*args: Any, **options: Any) -> Any:
    """Make a process group for `torch.distributed._dist2`."""
    _imported()
    from .dist2 import make_group

    return make_group(*args, **options)


@cache
def _imported() -> Any:
    """What makes process groups: imported once, because `no_collections` counts all that a rank has frozen."""
    from ...base.python import no_collections

    with no_collections():
        from .process_group import create

    return create


# After `register` is there: it calls `register`, which imports modules of this room, before one of them imports torch.
import torch  # noqa: E402, F401
