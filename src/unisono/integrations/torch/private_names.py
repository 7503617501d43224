"""The private names of torch without which `answer_to` cannot work: it checks them when torch is imported.

If one is missing, Gloo stays Gloo entirely. `tests/integrations/torch/test_private_names.py` lists all others.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

_C10D, _PYTHON = "torch._C._distributed_c10d", "torch.distributed.distributed_c10d"
_HELPER, _ALL = f"{_PYTHON}._new_process_group_helper", "2.12 to 2.15"

FOR_GLOO = {
    f"{_HELPER}:backend_config": _ALL,
    f"{_HELPER}:backend_options": "2.13",
    f"{_HELPER}:global_ranks_in_group": "2.13",
    f"{_HELPER}:group_name": "2.13",
    f"{_C10D}._DistributedBackendOptions": _ALL,
    f"{_PYTHON}._create_process_group_wrapper": _ALL,
    f"{_C10D}.ProcessGroup._register_backend": _ALL,
}
"""Name -> the versions of torch in which it was seen. A name behind a colon is a local variable of a function."""


def moved() -> str:
    """The first of these names that is missing; empty: all are there."""
    return next((f"{name}, which torch {seen} has" for name, seen in FOR_GLOO.items() if not is_there(name)), "")


def is_there(name: str) -> bool:
    """Does this torch have this name? Imports nothing."""
    path, _, variable = name.partition(":")
    found: Any = None
    at: list[str] = []
    for part in path.split("."):
        at.append(part)
        found = getattr(found, part, None) if ".".join(at) not in sys.modules else sys.modules[".".join(at)]
    if variable:
        return found is not None and variable in inspect.unwrap(found).__code__.co_varnames
    return found is not None
