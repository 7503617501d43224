"""Pause the garbage collector while modules are imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """No automatic collections in this block.

    Modules consist of objects that live on. A collector that looks at them while they are made, and each time at all of
    torch's, takes more time than the imports.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
